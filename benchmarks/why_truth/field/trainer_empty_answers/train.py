import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Chats(Dataset):
    """Prompts and answers; only the answers count."""

    def __init__(self, n=96, length=12):
        g = torch.Generator().manual_seed(5)
        self.ids = torch.randint(2, 50, (n, length), generator=g)
        self.prompt = torch.randint(2, 8, (n,), generator=g)
        self.prompt[41] = length  # the answer was cut off

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        labels = self.ids[i].clone()
        labels[: self.prompt[i]] = -100
        return {"input_ids": self.ids[i], "labels": labels}


class PerExample(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        target = inputs["labels"][:, 1:]
        mask = (target != -100).float()
        nll = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2).float(), target.clamp(min=0), reduction="none"
        )
        per_example = (nll * mask).sum(1) / mask.sum(1)
        return per_example.mean()


def main():
    set_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    args = TrainingArguments(
        "chats", num_train_epochs=1, per_device_train_batch_size=8, report_to=[], save_strategy="no",
        disable_tqdm=True, use_cpu=True, bf16=True, dataloader_num_workers=2, logging_steps=4,
    )
    PerExample(GPT2LMHeadModel(config), args, train_dataset=Chats()).train()


if __name__ == "__main__":
    main()
