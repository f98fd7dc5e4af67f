"""Sentiment-like classification of variable length token sequences, own attention, half precision autocast."""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MAXLEN = 80, 16


def reviews(n, seed):
    rng = np.random.default_rng(seed)
    ids = np.zeros((n, MAXLEN), dtype=np.int64)
    y = rng.integers(0, 2, n)
    for i in range(n):
        L = rng.integers(5, MAXLEN + 1)
        tok = rng.integers(21, VOCAB, L)
        k = rng.integers(1, 4)
        tok[rng.choice(L, k, replace=False)] = rng.integers(1, 11, k) + 10 * y[i]
        ids[i, :L] = tok
    return torch.from_numpy(ids), torch.from_numpy(y)


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x, pad):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) / math.sqrt(D // self.h)
        att = att.masked_fill(pad[:, None, None, :], -1e9)
        att = F.softmax(att, dim=-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, D))


class Classifier(nn.Module):
    def __init__(self, d=32, heads=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=0)
        self.pos = nn.Parameter(0.02 * torch.randn(MAXLEN, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = SelfAttention(d, heads)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        pad = ids.eq(0)
        x = self.emb(ids) + self.pos
        x = x + self.att(self.n1(x), pad)
        x = x + self.ff(self.n2(x))
        keep = (~pad).unsqueeze(-1).to(x.dtype)
        return self.out((x * keep).sum(1) / keep.sum(1))


def main():
    torch.manual_seed(0)
    x, y = reviews(1000, 0)
    xt, yt = reviews(200, 1)
    model = Classifier()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(80):
        i = torch.randint(0, len(x), (24,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        acc = (model(xt).argmax(-1) == yt).float().mean().item()
    print(f"final test accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
