"""Tiny causal language model, own attention with finfo.min masks, FP16 + GradScaler."""
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, T = 24, 20


def batch(rng, n):
    x = np.zeros((n, T + 1), dtype=np.int64)
    step = rng.integers(1, 5, n)
    x[:, 0] = rng.integers(1, VOCAB, n)
    for t in range(1, T + 1):
        x[:, t] = (x[:, t - 1] + step - 1) % (VOCAB - 1) + 1
    length = rng.integers(6, T + 2, n)
    x[np.arange(T + 1)[None] >= length[:, None]] = 0
    return torch.from_numpy(x)


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def forward(self, x, pad):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        s = (q / math.sqrt(D // self.h)) @ k.transpose(-1, -2)
        neg = torch.finfo(s.dtype).min
        causal = torch.ones(L, L, dtype=torch.bool).triu(1)
        s = s.masked_fill(causal, neg).masked_fill(pad[:, None, None, :], neg)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


class GPTish(nn.Module):
    def __init__(self, d=32, h=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(T, d)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = Attention(d, h)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[:ids.size(1)]
        x = x + self.att(self.n1(x), ids == 0)
        x = x + self.ff(self.n2(x))
        return self.head(self.n3(x))


def lm_loss(logits, target):
    return F.cross_entropy(logits.float().reshape(-1, VOCAB), target.reshape(-1), ignore_index=0)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = GPTish()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(120):
        ids = batch(rng, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[:, :-1])
        loss = lm_loss(logits, ids[:, 1:])
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    with torch.no_grad():
        ids = batch(np.random.default_rng(1), 100)
        val = lm_loss(model(ids[:, :-1]), ids[:, 1:]).item()
    print(f"final val loss {val:.4f}")


if __name__ == "__main__":
    main()
