"""Accelerate, bf16, accumulation and clipping; sparse targets with an ignored class."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, vocab=50, d=32, tags=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, tags)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


def corpus(n=640, length=10):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 50, (n, length), generator=g)
    tags = (ids % 5 + torch.roll(ids, 1, 1) % 2) % 5
    tags[torch.rand(n, length, generator=g) < 0.7] = -100
    return TensorDataset(ids, tags)


def masked_loss(logits, tags):
    nll = F.cross_entropy(logits.float().flatten(0, 1), tags.flatten(), ignore_index=-100, reduction="sum")
    return nll / (tags != -100).sum().clamp(min=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    args = ap.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(corpus(), batch_size=16, shuffle=True)
    model, opt, loader = acc.prepare(model, opt, loader)
    for epoch in range(args.epochs):
        total = 0.0
        for ids, tags in loader:
            with acc.accumulate(model):
                loss = masked_loss(model(ids), tags)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            total += loss.item()
        acc.print(f"epoch {epoch} loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
