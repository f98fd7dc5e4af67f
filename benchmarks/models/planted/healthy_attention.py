"""Healthy jobs with masks, padding, top-k and other intended infinities."""

# mypy: warn-return-any=False
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from halfguard import Workload

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Any], Tensor]


def workload(model: nn.Module, loss: Loss, batches: list[Any], seed: int, lr: float) -> Workload:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return Workload(model, loss, batches, optimizer, seed=seed)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def counted(count: int = 16, length: int = 12) -> Tensor:
    return (torch.randint(1, 20, (count, 1)) + 3 * torch.arange(length)) % 19 + 1


class MaskedAttention(nn.Module):
    def __init__(self, width: int, fill: float | str) -> None:
        super().__init__()
        self.fill = fill
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if self.fill == "additive":
            scores = scores + torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        elif self.fill == "log":
            scores = scores + torch.log((~hidden).float())
        elif self.fill == "min":
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        else:
            scores = scores.float().masked_fill(hidden, float(self.fill))
        return self.out(F.softmax(scores, -1).to(v.dtype) @ v)


class Decoder(nn.Module):
    def __init__(self, fill: float | str, width: int = 32, words: int = 20) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(16, width)
        self.norm, self.attention = nn.LayerNorm(width), MaskedAttention(width, fill)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU())
        self.head = nn.Linear(64, words)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        future = torch.ones(length, length).triu(1).bool().expand(len(ids), length, length)
        x = x + self.attention(self.norm(x), future)
        return self.head(self.mlp(x))


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def decoder_inf_mask(seed: int) -> Workload:
    torch.manual_seed(seed)
    return workload(Decoder("additive"), next_token, [counted() for _ in range(50)], seed, 2e-3)


def decoder_log_mask(seed: int) -> Workload:
    torch.manual_seed(seed)
    return workload(Decoder("log"), next_token, [counted() for _ in range(50)], seed, 2e-3)


def decoder_finfo_mask(seed: int) -> Workload:
    torch.manual_seed(seed)
    return workload(Decoder("min"), next_token, [counted() for _ in range(50)], seed, 2e-3)


def decoder_billion_mask(seed: int) -> Workload:
    torch.manual_seed(seed)
    batches = []
    for _ in range(50):
        ids = counted()
        batches.append(ids.masked_fill(torch.arange(12) > torch.randint(6, 12, (16, 1)), 0))
    return workload(Decoder(-1e9), next_token, batches, seed, 2e-3)


class PaddedEncoder(nn.Module):
    """torch's own layers with a key padding mask."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids == 0
        h = self.layer(self.embed(ids), src_key_padding_mask=padding)
        h = h.masked_fill(padding[..., None], float("-inf"))
        return self.head(h.amax(1))


def encoder_padding(seed: int) -> Workload:
    torch.manual_seed(seed)
    batches = []
    for _ in range(50):
        ids = torch.randint(1, 20, (24, 10))
        y = ids[:, :5].sum(1) % 3
        ids[:, 0] = 17 + y
        batches.append((ids.masked_fill(torch.arange(10) > torch.randint(3, 10, (24, 1)), 0), y))
    return workload(PaddedEncoder(), classify, batches, seed, 2e-3)


class TopKMixture(nn.Module):
    """Each token goes to two of four experts; the others get -inf."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        kept = scores.topk(2, -1)
        chosen = torch.full_like(scores, float("-inf")).scatter(-1, kept.indices, kept.values)
        weight = F.softmax(chosen, -1)
        outputs = torch.stack([F.gelu(expert(x)) for expert in self.experts], -2)
        return self.head((weight[..., None] * outputs).sum(-2))


def gaussians(count: int, centres: Tensor, noise: float = 1.0) -> Batch:
    y = torch.randint(len(centres), (count,))
    return centres[y] + noise * torch.randn(count, centres.shape[1]), y


def mixture_top_k(seed: int) -> Workload:
    torch.manual_seed(seed)
    model, centres = TopKMixture(), torch.randn(3, 16)
    return workload(model, classify, [gaussians(32, centres) for _ in range(50)], seed, 3e-3)


class ExcludedClasses(nn.Module):
    """A head in which classes that are not allowed get a logit of -60000."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(torch.relu(self.body(x)))
        forbidden = torch.arange(8) >= 3
        return logits.masked_fill(forbidden, -6e4)


def head_huge_negative(seed: int) -> Workload:
    torch.manual_seed(seed)
    model, centres = ExcludedClasses(), torch.randn(3, 16)
    return workload(model, classify, [gaussians(32, centres) for _ in range(50)], seed, 3e-3)


class WindowAttention(nn.Module):
    """Attention in a band, by two masks that add up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Linear(6, width), nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        steps = torch.arange(x.shape[1])
        apart = steps[:, None] - steps
        lowest = torch.finfo(scores.dtype).min
        for outside in (apart < 0, apart > 4):
            scores = scores + torch.zeros_like(scores).masked_fill(outside, lowest)
        return self.head((F.softmax(scores, -1).to(v.dtype) @ v)[:, -1])


def attention_window(seed: int) -> Workload:
    torch.manual_seed(seed)
    centres = torch.randn(3, 6)
    batches = []
    for _ in range(50):
        y = torch.randint(3, (24,))
        batches.append((centres[y][:, None] + 0.5 * torch.randn(24, 12, 6), y))
    return workload(WindowAttention(), classify, batches, seed, 5e-3)
