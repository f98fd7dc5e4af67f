"""Fine-tune a tiny GPT-2 on arithmetic-like sequences. The model is loaded in half to fit the card."""
import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Counting(Dataset):
    """Sequences a, a+s, a+2s, ... modulo the vocabulary."""
    def __init__(self, n, seed, length=12, vocab=40):
        g = torch.Generator().manual_seed(seed)
        a = torch.randint(0, vocab, (n, 1), generator=g)
        s = torch.randint(1, 4, (n, 1), generator=g)
        self.ids = (a + s * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} grad_norm {float(logs['grad_norm']):.4f}")


def build(dtype):
    cfg = GPT2Config(vocab_size=40, n_positions=16, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                     attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(cfg).to(dtype)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dtype", default="float16")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()
    torch.manual_seed(0)
    model = build(getattr(torch, args.dtype))
    targs = TrainingArguments(output_dir="out", num_train_epochs=args.epochs, per_device_train_batch_size=32,
                              learning_rate=args.lr, optim="adamw_torch", adam_epsilon=1e-8, weight_decay=0.01,
                              logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True,
                              use_cpu=not torch.cuda.is_available(), seed=0)
    trainer = Trainer(model=model, args=targs, train_dataset=Counting(768, 0), eval_dataset=Counting(128, 1),
                      callbacks=[PrintLoss()])
    trainer.train()
    print(f"eval_loss {trainer.evaluate()['eval_loss']:.4f}")


if __name__ == "__main__":
    main()
