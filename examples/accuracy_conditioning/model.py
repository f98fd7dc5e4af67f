"""A transformer whose input is conditioned on accuracy and category, in four variants.

``broken``     as it was written first: nothing limits the accuracy, and the mask is -1e9
``patched``    the change that circulated: GELU instead of ReLU, and clamps at 65,000; the mask stayed
``unbounded``  the mask is mended, the conditioning is not
``cured``      accuracy limited to [0, 1], a bounded activation, a normalised output, a mask that fits
"""

import torch
from data import CATEGORIES, DIGITS, LENGTH
from torch import nn

VARIANTS = ("broken", "patched", "unbounded", "cured")


class AccuracyConditioning(nn.Module):
    """Embeds an accuracy and a category. Finite in half for every accuracy that is a number."""

    def __init__(self, width, *, bounded=True, patched=False):
        super().__init__()
        self.bounded, self.patched = bounded, patched
        activation = nn.Tanh() if bounded else nn.GELU() if patched else nn.ReLU()
        self.projection = nn.Sequential(
            nn.Linear(1, width // 2), activation, nn.Linear(width // 2, width), nn.LayerNorm(width)
        )
        self.category = nn.Embedding(CATEGORIES, width)
        self.norm = nn.LayerNorm(width) if bounded else nn.Identity()

    def forward(self, accuracy, category):
        if self.bounded or self.patched:
            accuracy = accuracy.clamp(0.0, 1.0)
        embedded = self.projection(accuracy)
        if self.patched:
            embedded = embedded.clamp(-65000, 65000)
        return self.norm(embedded + self.category(category))


class Attention(nn.Module):
    def __init__(self, width, heads, fits_half):
        super().__init__()
        self.heads, self.fits_half = heads, fits_half
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        if self.fits_half:
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        else:
            scores = scores.masked_fill(later, -1e9)
        weights = scores.softmax(-1)
        return self.out((weights.to(v.dtype) @ v).transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, fits_half):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, fits_half)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Student(nn.Module):
    """Predicts each digit of the answer from the question and the digits written before."""

    def __init__(self, width=64, heads=4, layers=2, variant="cured"):
        super().__init__()
        fits_half = variant not in ("broken", "patched")
        self.digits = nn.Embedding(2 * DIGITS, width)  # of questions, then of answers
        self.positions = nn.Embedding(2 * LENGTH, width)
        self.conditioning = AccuracyConditioning(
            width, bounded=variant == "cured", patched=variant == "patched"
        )
        self.blocks = nn.ModuleList(Block(width, heads, fits_half) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, DIGITS)

    def forward(self, questions, categories, accuracy, answers):
        written = torch.cat([questions, answers[:, :-1] + DIGITS], 1)
        places = torch.arange(written.shape[1], device=written.device)
        x = self.digits(written) + self.positions(places)
        x = x + self.conditioning(accuracy, categories)[:, None]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))[:, LENGTH - 1 :]
