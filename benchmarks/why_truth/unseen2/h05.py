"""Tiny GPT-2 with the transformers Trainer in BF16 and a long warm-up."""
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB, LENGTH = 24, 12


class Cycles(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(5)
        start = torch.randint(0, VOCAB, (size, 1), generator=g)
        self.ids = (start + 5 * torch.arange(LENGTH)) % VOCAB

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    set_seed(5)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
    ))
    args = TrainingArguments(
        output_dir="/tmp/cycles",
        per_device_train_batch_size=8,
        max_steps=120,
        learning_rate=5e-3,
        warmup_steps=60,
        lr_scheduler_type="cosine",
        adam_epsilon=1e-8,
        max_grad_norm=1.0,
        logging_steps=10,
        bf16=True,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=args, train_dataset=Cycles(960)).train()


if __name__ == "__main__":
    main()
