# mypy: ignore-errors
"""Rotary angles computed in the model's dtype: position times frequency, up to 1,000 radians, in BF16."""

import torch
from torch import nn
from torch.nn import functional

PRECISION = "bfloat16"


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(64, 32), nn.Linear(32, 96), nn.Linear(32, 64)
        self.register_buffer("freq", 10000 ** (-torch.arange(0, 16) / 16.0))

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        t = torch.arange(900, 900 + ids.shape[1])
        angles = t.to(q.dtype)[:, None] * self.freq.to(q.dtype)  # guilty
        cos, sin = angles.float().cos(), angles.float().sin()
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(
            q.to(v.dtype), k.to(v.dtype), v, is_causal=True
        )
        return self.head(x + mixed)


def make():
    torch.manual_seed(2)
    model = Attention()
    with torch.no_grad():
        model.qkv.weight.mul_(4)
    ids = torch.randint(0, 64, (2, 40))

    def loss(model, ids):
        return functional.cross_entropy(
            model(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
        )

    return model, loss, ids
