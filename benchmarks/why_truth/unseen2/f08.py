"""Fine-tune a tiny GPT-2 on synthetic arithmetic-progression sequences with the transformers Trainer."""
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB = 32
LENGTH = 16


class Progressions(Dataset):
    """Sequences a, a+d, a+2d, ... modulo the vocabulary."""

    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        start = torch.randint(0, VOCAB, (size, 1), generator=g)
        delta = torch.randint(1, 4, (size, 1), generator=g)
        self.ids = (start + delta * torch.arange(LENGTH)) % VOCAB

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def build_model():
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        initializer_range=0.25,
    )
    return GPT2LMHeadModel(config).to(torch.bfloat16)


def main():
    set_seed(0)
    model = build_model()
    args = TrainingArguments(
        output_dir="/tmp/progressions",
        per_device_train_batch_size=16,
        max_steps=200,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        logging_steps=10,
        bf16=True,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=Progressions(3200, seed=1))
    trainer.train()
    print("final", [round(h["loss"], 4) for h in trainer.state.log_history if "loss" in h][-1])


if __name__ == "__main__":
    main()
