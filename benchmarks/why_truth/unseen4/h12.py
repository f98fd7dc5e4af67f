"""Accelerate, bf16, gradient accumulation; token loss summed and divided by the true token count."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def translate(n, seed, vocab=20, length=8):
    """Target token = (source token * 3 + position) modulo the vocabulary, variable length."""
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(0, vocab, (n, length), generator=g)
    tgt = (src * 3 + torch.arange(length)) % vocab
    size = torch.randint(0, length + 1, (n,), generator=g)
    tgt = tgt.masked_fill(torch.arange(length)[None] >= size[:, None], -100)
    return src, tgt


class Tagger(nn.Module):
    def __init__(self, vocab=20, dim=64, length=8):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.net = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, vocab))

    def forward(self, src):
        return self.net(self.tok(src) + self.pos.weight)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--mixed-precision", default="bf16")
    p.add_argument("--epochs", type=int, default=6)
    args = p.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=args.mixed_precision,
                      gradient_accumulation_steps=2)
    train = DataLoader(TensorDataset(*translate(1024, 0)), batch_size=32, shuffle=True)
    vs, vt = translate(256, 1)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, opt, train = acc.prepare(model, opt, train)
    for ep in range(args.epochs):
        for src, tgt in train:
            with acc.accumulate(model):
                logits = model(src).float()
                total = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=-100, reduction="sum")
                loss = total / (tgt != -100).sum().clamp(min=1)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
        with torch.no_grad():
            ok = vt != -100
            hit = (model(vs.to(acc.device)).argmax(-1).cpu() == vt)[ok].float().mean().item()
        acc.print(f"epoch {ep} loss {loss.item():.4f} val_acc {hit:.3f}")


if __name__ == "__main__":
    main()
