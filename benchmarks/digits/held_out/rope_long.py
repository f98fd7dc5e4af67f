"""Encoder layer with rotary embeddings whose angles are built in the activations' dtype; long packed documents."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PRECISION = "bfloat16"


class Rotary(nn.Module):
    def __init__(self, head_dim, base=10000.0):
        super().__init__()
        inv = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv)

    def forward(self, position_ids, dtype):
        angles = position_ids[..., None].to(dtype) * self.inv_freq.to(dtype)  # guilty
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class RotaryLayer(nn.Module):
    def __init__(self, dim=64, heads=2):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.o = nn.Linear(dim, dim)
        self.rope = Rotary(self.d)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.h, self.d).transpose(1, 2)

    def forward(self, x, position_ids):
        y = self.norm(x)
        q, k, v = self.split(self.q(y)), self.split(self.k(y)), self.split(self.v(y))
        cos, sin = self.rope(position_ids, q.dtype)
        cos, sin = cos[:, None], sin[:, None]
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Tagger(nn.Module):
    def __init__(self, vocab=50, dim=64, tags=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layer = RotaryLayer(dim)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids, position_ids):
        return self.out(self.layer(self.emb(ids), position_ids))


def loss_fn(model, batch):
    logits = model(batch["ids"], batch["position_ids"])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["tags"].flatten())


def make():
    torch.manual_seed(61)
    model = Tagger()
    with torch.no_grad():
        model.layer.q.weight.mul_(2.5)
        model.layer.k.weight.mul_(2.5)
    B, T = 4, 40
    pos = torch.arange(T)[None] + torch.tensor([0, 700, 1500, 3100])[:, None]  # chunks of longer documents
    batch = {"ids": torch.randint(0, 50, (B, T)), "position_ids": pos, "tags": torch.randint(0, 5, (B, T))}
    return model, loss_fn, batch
