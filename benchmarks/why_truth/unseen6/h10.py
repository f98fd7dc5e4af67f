"""Causal token model with hand-written attention over padded batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
VOCAB, LEN, AMP = 24, 10, torch.float16


def batch(n):
    start = torch.randint(2, VOCAB, (n, 1))
    stride = torch.randint(1, 4, (n, 1))
    ids = 2 + (start - 2 + stride * torch.arange(LEN + 1)) % (VOCAB - 2)
    length = torch.randint(4, LEN + 2, (n, 1))
    return ids.masked_fill(torch.arange(LEN + 1) >= length, 0)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        s = q @ k.transpose(1, 2) / q.size(-1) ** 0.5
        x = x + self.o((s + bias.to(s.dtype)).softmax(-1) @ v.float())
        return x + self.ff(self.n2(x))


class Model(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Parameter(0.1 * torch.randn(LEN, d))
        self.layers = nn.ModuleList(Layer(d) for _ in range(2))
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        allowed = torch.ones(LEN, LEN).tril().bool()[None] & (ids > 0)[:, None]
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))
        h = self.tok(ids) + self.pos
        for layer in self.layers:
            h = layer(h, bias)
        return self.out(h)


def loss_of(model, ids):
    with torch.autocast("cpu", dtype=AMP):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], ignore_index=0)


model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(260):
    loss = loss_of(model, batch(48))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"val_loss {loss_of(model, batch(1000)).item():.4f}")
