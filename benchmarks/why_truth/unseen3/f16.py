"""Causal linear attention (Performer-like feature map) for a long copy/counting task."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LEN = 12, 192


def batch_of(rng, n):
    """token t is predictable from the token `lag` steps back; lag is given by the first token"""
    x = np.zeros((n, LEN), dtype=np.int64)
    lag = rng.integers(1, 4, n)
    x[:, 0] = lag
    x[:, 1:5] = rng.integers(4, VOCAB, (n, 4))
    for t in range(5, LEN):
        x[:, t] = x[np.arange(n), t - lag]
    return torch.from_numpy(x)


class LinearAttention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.h, self.dh = heads, d // heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.gain = nn.Parameter(torch.tensor(4.0))

    def feature(self, u):
        return torch.exp(self.gain * F.normalize(u, dim=-1) * 2)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.dh).permute(2, 0, 3, 1, 4)
        q, k = self.feature(q), self.feature(k)
        kv = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=2)
        z = torch.cumsum(k, dim=2)
        num = (q.unsqueeze(-1) * kv).sum(dim=-2)
        den = (q * z).sum(dim=-1, keepdim=True)
        y = num / den
        return self.out(y.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = LinearAttention(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self, d=16, depth=1):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.shift = nn.Conv1d(d, d, 4, padding=3)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        h = self.tok(ids)
        h = h + self.shift(h.transpose(1, 2))[..., :ids.size(1)].transpose(1, 2)
        for b in self.blocks:
            h = b(h)
        return self.head(h)


def main():
    torch.manual_seed(9)
    rng = np.random.default_rng(9)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(70):
        ids = batch_of(rng, 4)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")
    with torch.no_grad():
        ids = batch_of(np.random.default_rng(1), 16)
        val = F.cross_entropy(model(ids[:, :-1]).float().reshape(-1, VOCAB), ids[:, 1:].reshape(-1)).item()
    print(f"final val loss {val:.4f}")


if __name__ == "__main__":
    main()
