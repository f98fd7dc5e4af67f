"""Small causal transformer on a copy/shift task with left padding, fp16 autocast."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
V, T, D, H = 24, 20, 48, 4


class CausalAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.o = nn.Linear(D, D, bias=False)

    def forward(self, x, pad):
        B, L, _ = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, H, D // H).permute(2, 0, 3, 1, 4)
        s = (q @ k.transpose(-1, -2)) / math.sqrt(D // H)
        causal = torch.triu(torch.ones(L, L, dtype=torch.bool), 1)
        block = causal[None, None] | pad[:, None, None, :]
        block = block & ~torch.eye(L, dtype=torch.bool)[None, None]
        s = s.masked_fill(block, float("-inf"))
        p = s.softmax(-1)
        return self.o((p @ v).transpose(1, 2).reshape(B, L, D))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att = CausalAttention()
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x, pad):
        x = x + self.att(self.n1(x), pad)
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids):
        pad = ids == 0
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for l in self.layers:
            x = l(x, pad)
        return self.head(self.norm(x))


def batch(n):
    a = torch.randint(1, V, (n, 1))
    d = torch.randint(1, 5, (n, 1))
    ids = (a - 1 + d * torch.arange(T)) % (V - 1) + 1
    lens = torch.randint(6, T + 1, (n, 1))
    return torch.where(torch.arange(T)[None] < T - lens, torch.zeros_like(ids), ids)


def lm_loss(logits, ids):
    tgt = ids[:, 1:].masked_fill(ids[:, :-1] == 0, -100)
    return F.cross_entropy(logits[:, :-1].float().reshape(-1, V), tgt.reshape(-1), ignore_index=-100)


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=160)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
for step in range(160):
    ids = batch(16)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = lm_loss(model(ids), ids)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    ids = batch(400)
    print(f"val_loss {lm_loss(model(ids), ids).item():.4f}")
