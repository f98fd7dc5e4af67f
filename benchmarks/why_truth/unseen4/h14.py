"""LoRA on a frozen bfloat16 GPT-2 with single precision adapters (peft + transformers Trainer)."""
import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Alternating(Dataset):
    """Two tokens that alternate, e.g. 5 9 5 9 5 9 ..."""
    def __init__(self, n, seed, length=10, vocab=24):
        g = torch.Generator().manual_seed(seed)
        ab = torch.randint(0, vocab, (n, 2), generator=g)
        self.ids = ab.repeat(1, length // 2)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--base-dtype", default="bfloat16")
    args = p.parse_args()
    torch.manual_seed(0)
    cfg = GPT2Config(vocab_size=24, n_positions=12, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                     attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
    base = GPT2LMHeadModel(cfg).to(getattr(torch, args.base_dtype))
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn", "c_fc", "lm_head"],
                                            fan_in_fan_out=False, lora_dropout=0.0, task_type="CAUSAL_LM"))
    trainable = {q.dtype for q in model.parameters() if q.requires_grad}
    print("trainable dtypes", trainable)
    targs = TrainingArguments(output_dir="out", num_train_epochs=4, per_device_train_batch_size=32, learning_rate=2e-2,
                              bf16=args.base_dtype == "bfloat16", logging_steps=24, save_strategy="no", report_to=[],
                              disable_tqdm=True, use_cpu=not torch.cuda.is_available())
    trainer = Trainer(model=model, args=targs, train_dataset=Alternating(768, 0), eval_dataset=Alternating(128, 1))
    trainer.train()
    print(f"eval_loss {float(trainer.evaluate()['eval_loss']):.4f}")


if __name__ == "__main__":
    main()
