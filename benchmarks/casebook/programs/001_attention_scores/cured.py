"""tiny transformer on a copy task, mixed precision"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q / math.sqrt(d // self.h), k.transpose(-2, -1))
        att = F.softmax(scores, dim=-1)
        y = torch.matmul(att, v).transpose(1, 2).reshape(b, t, d)
        return self.out(y)


class Net(nn.Module):
    def __init__(self, vocab=32, dim=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = Attention(dim, 2)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids) * 64  # same multiplier as in the tensor2tensor code
        x = x + self.attn(x)
        return self.head(F.layer_norm(x, x.shape[-1:]))


model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cpu")
for step in range(30):
    ids = torch.randint(0, 32, (16, 12))
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale()}")
