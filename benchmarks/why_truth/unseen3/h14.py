"""HF Trainer in bf16 with gradient accumulation and mostly ignored labels (-100)."""
import os
os.environ.setdefault("WANDB_DISABLED", "true")

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainingArguments, set_seed


class Tagged(torch.utils.data.Dataset):
    """tag of a token depends on itself and its left neighbour; only some tokens are annotated, some rows not at all"""

    def __init__(self, n, seed, length=14, vocab=20):
        rng = np.random.default_rng(seed)
        self.x = rng.integers(0, vocab, (n, length))
        left = np.roll(self.x, 1, 1)
        left[:, 0] = 0
        y = (self.x + left) % 3
        y[rng.random(y.shape) < 0.7] = -100
        y[rng.random(n) < 0.1] = -100
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"ids": torch.tensor(self.x[i]), "labels": torch.tensor(self.y[i])}


class Tagger(nn.Module):
    def __init__(self, vocab=20, d=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.fc1 = nn.Linear(2 * d, 64)
        self.fc2 = nn.Linear(64, 3)

    def forward(self, ids, labels=None):
        e = self.emb(ids)
        left = torch.cat([self.emb(torch.zeros_like(ids[:, :1])), e[:, :-1]], dim=1)
        logits = self.fc2(F.relu(self.fc1(torch.cat([e, left], -1))))
        out = {"logits": logits}
        if labels is not None:
            tot = F.cross_entropy(logits.float().reshape(-1, 3), labels.reshape(-1), ignore_index=-100, reduction="sum")
            out = {"loss": tot / (labels != -100).sum().clamp(min=1), "logits": logits}
        return out


def accuracy(model, data):
    x, y = torch.tensor(data.x), torch.tensor(data.y)
    with torch.no_grad():
        p = model(x)["logits"].argmax(-1)
    m = y != -100
    return (p[m] == y[m]).float().mean().item()


def main():
    set_seed(0)
    train, val = Tagged(1200, 0), Tagged(300, 1)
    args = TrainingArguments(output_dir="out", max_steps=120, per_device_train_batch_size=24,
                             gradient_accumulation_steps=2, learning_rate=1e-2, bf16=True, use_cpu=True, logging_steps=12,
                             save_strategy="no", report_to=[], remove_unused_columns=False, disable_tqdm=True, max_grad_norm=1.0)
    tr = Trainer(model=Tagger(), args=args, train_dataset=train)
    tr.train()
    tr.model.eval()
    print(f"final tag accuracy {accuracy(tr.model, val):.4f}")


if __name__ == "__main__":
    main()
