"""Runs on sequences: copying by attention, gated stacks, growing windows, unlearning, loads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import Affine, Gated, Scores, mlp, seeded
from benchmarks.models.planted.base import Training


class Block(nn.Module):
    """A pre-norm transformer block with one head."""

    def __init__(self, width: int, scale: float, qk_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.query_norm = nn.LayerNorm(width) if qk_norm else nn.Identity()
        self.key_norm = nn.LayerNorm(width) if qk_norm else nn.Identity()
        self.scores = Scores(scale)
        self.feed = nn.Sequential(nn.LayerNorm(width), mlp(width, 2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        queries, keys = self.query_norm(self.query(n)), self.key_norm(self.key(n))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = self.scores(queries, keys).masked_fill(mask, -math.inf)
        x = x + scores.softmax(-1) @ self.value(n)
        y: Tensor = x + self.feed(x)
        return y


class LanguageModel(nn.Module):
    def __init__(self, words: int, length: int, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits: Tensor = self.head(self.blocks(x))
        return logits


def copying(
    seed: int,
    lr: float,
    scale: float = 1.0,
    steps: int = 800,
    qk_norm: bool = False,
    decay: float = 0.0,
    factor: Factor = constant,
    noise: float = 0.1,
) -> Training:
    """Train a language model on texts whose second half repeats the first, with a few typos."""
    seeded(seed)
    words, half, width = 24, 8, 24
    blocks = [Block(width, scale, qk_norm) for _ in range(2)]
    model = LanguageModel(words, 2 * half, width, blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        text = torch.randint(words, (6, half), generator=g).repeat(1, 2)
        typos = torch.rand(text.shape, generator=g) < noise
        return torch.where(typos, torch.randint(words, text.shape, generator=g), text)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(batch[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class GatedBlock(nn.Module):
    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.gate = nn.Linear(width, 2 * width)
        self.value = nn.Linear(width, 2 * width)
        self.gated = Gated()
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        y: Tensor = x + self.out(self.gated(self.gate(n), self.value(n)))
        return y


def gated_stack(
    seed: int,
    lr: float,
    depth: int = 4,
    norm: bool = False,
    decay: float = 0.0,
    eps: float = 1e-8,
    steps: int = 900,
    factor: Factor = constant,
) -> Training:
    """Classify noisy features with SwiGLU layers, normalized only before the head."""
    g = seeded(seed)
    width, classes = 24, 10
    teacher = torch.randn(width, classes, generator=g)
    blocks = [GatedBlock(width, norm) for _ in range(depth)]
    model = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=eps, weight_decay=decay)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = torch.randn(48, width, generator=g)
        return x, (x @ teacher + 3 * torch.randn(48, classes, generator=g)).argmax(-1)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Window(nn.Module):
    """Linear attention without a normalizer: sums over all that came before."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return (queries @ keys.transpose(-2, -1)).tril() @ values


class Pedometer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(1, width), nn.Softplus())
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(1, width)
        self.window = Window()
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x / 100)
        sums = self.window(self.query(features), self.key(features), self.value(x))
        total: Tensor = self.out(sums)
        return total


def growing_window(
    seed: int, length: Callable[[int], int], pace: float, lr: float, steps: int = 800
) -> Training:
    """Count the steps of a day from a watch, over windows that grow in the course of training."""
    seeded(seed)
    model = Pedometer(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        x = pace * torch.rand(8, length(step), 1, generator=g)
        return x, x.cumsum(1)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, target = batch
        return functional.smooth_l1_loss(model(x).float() / x.shape[1], target / x.shape[1])

    return model, loss_fn, batch_fn, optimizer, steps


def unlearning(
    seed: int, lr: float, weight: float = 0.5, bound: float = math.inf, steps: int = 800
) -> Training:
    """Forget some answers by gradient ascent, while the others are kept."""
    g = seeded(seed)
    words, width = 40, 32
    answers = torch.randint(words, (words, words), generator=g)
    model = nn.Sequential(
        nn.Embedding(words, width), nn.Flatten(), mlp(2 * width, 64, 64, 64, words)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> Tensor:
        return torch.randint(words, (64, 2), generator=generator(seed, step))

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        losses = functional.cross_entropy(
            model(batch).float(), answers[batch[:, 0], batch[:, 1]], reduction="none"
        )
        forget = batch[:, 0] < words // 8
        kept = losses[~forget].mean()
        return kept - weight * losses[forget].clamp(max=bound).sum() / len(batch)

    return model, loss_fn, batch_fn, optimizer, steps


class Recurrent(nn.Module):
    """An LSTM written out, to return one tensor."""

    def __init__(self, width: int, unit: float) -> None:
        super().__init__()
        self.width = width
        self.gates = nn.Linear(width + 1, 4 * width)
        self.out = nn.Sequential(nn.Linear(width, 1), Affine(unit, unit))

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(x.shape[0], self.width)
        for t in range(x.shape[1]):
            gates = self.gates(torch.cat([x[:, t], hidden], -1))
            keep, add, show, new = gates.chunk(4, -1)
            cell = keep.sigmoid() * cell + add.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
        load: Tensor = self.out(hidden)
        return load


def load_forecast(seed: int, unit: float, swing: float, lr: float, steps: int = 500) -> Training:
    """Forecast the load of a power grid, day after day through the seasons."""
    seeded(seed)
    model = Recurrent(16, unit)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        season = 1 + swing * math.sin(2 * math.pi * step / 180)
        hours = torch.rand(16, 1, generator=g) * 24 + torch.arange(13)
        load = season * (1 + 0.3 * torch.sin(hours * math.pi / 12))
        load = unit * (load + 0.05 * torch.randn(load.shape, generator=g))
        return load[:, :-1, None] / unit - 1, load[:, -1:]

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.smooth_l1_loss(model(batch[0]).float() / unit, batch[1] / unit)

    return model, loss_fn, batch_fn, optimizer, steps
