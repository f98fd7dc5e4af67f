"""Decoder block with QK-normalisation and hand-written (eager) attention, BF16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PRECISION = "bfloat16"


class EagerAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(self.d)
        self.k_norm = nn.LayerNorm(self.d)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.d ** -0.5  # guilty
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        scores = scores.float().masked_fill(~mask, float("-inf"))
        att = F.softmax(scores, dim=-1)
        y = (att.to(v.dtype) @ v).transpose(1, 2).reshape(B, T, C)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = EagerAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.att(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=128, heads=2, ctx=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(ctx, dim))
        self.block = Block(dim, heads)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos[: idx.shape[1]]
        return self.head(self.block(x))


def loss_fn(model, batch):
    logits = model(batch[:, :-1]).float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))


def make():
    torch.manual_seed(31)
    model = TinyLM()
    att = model.block.att
    with torch.no_grad():  # trained gains and biases: all tokens share a strong direction
        shared = torch.sign(torch.randn(att.d))
        att.q_norm.weight.fill_(1.5)
        att.k_norm.weight.fill_(1.5)
        att.q_norm.bias.copy_(4.1 * shared)
        att.k_norm.bias.copy_(4.1 * shared)
    att.k_norm.bias.requires_grad_(False)
    return model, loss_fn, torch.randint(0, 64, (4, 29))
