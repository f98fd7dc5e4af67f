"""Causal attention with -inf masks and padding on a copy task, fp16 autocast."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LEN = 12, 10


class CausalAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.dim = dim

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = (q / math.sqrt(self.dim)) @ k.transpose(1, 2)
        t = x.size(1)
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        # padding is on the right, so every row can at least see token 0
        s = s.masked_fill(causal[None] | pad[:, None, :], float("-inf"))
        return self.out(torch.softmax(s.float(), -1).to(v.dtype) @ v)


class Copier(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(LEN, dim)
        self.att = CausalAttention(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.out = nn.Linear(dim, VOCAB)

    def forward(self, ids, pad):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        h = h + self.att(h, pad)
        return self.out(h + self.ff(h))


def batch(n, g):
    """Predict the first token of the sequence at every later position."""
    ids = torch.randint(1, VOCAB, (n, LEN), generator=g)
    length = torch.randint(4, LEN + 1, (n,), generator=g)
    pad = torch.arange(LEN)[None] >= length[:, None]
    ids = ids.masked_fill(pad, 0)
    target = ids[:, :1].expand(-1, LEN).clone().masked_fill(pad, -100)
    return ids, pad, target


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--amp", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = bool(args.amp)
    model = Copier().to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0, enabled=amp)
    for i in range(args.steps):
        ids, pad, tgt = (t.to(device) for t in batch(32, g))
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            logits = model(ids, pad)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten(), ignore_index=-100)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if (i + 1) % 25 == 0:
            ok = tgt != -100
            acc = (logits.argmax(-1) == tgt)[ok].float().mean().item()
            print(f"step {i + 1} loss {loss.item():.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
