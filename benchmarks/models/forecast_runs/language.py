"""Sequences: attention logits that grow, a recurrent counter, embeddings without a limit."""

# mypy: warn-return-any=False
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as every user writes it

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.planted.base import Training


class Logits(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(1, 2)


class Pointer(nn.Module):
    """Points at the word of a sentence that a question asks for."""

    def __init__(self, words: int, width: int, *, norm: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.logits = Logits()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.logits(self.norm(self.query(x[:, :1])), self.norm(self.key(x)))[:, 0]


def pointing(
    seed: int,
    *,
    lr: float,
    norm: bool = False,
    smoothing: float = 0.0,
    sharpen: bool = False,
    decay: float = 0.0,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """A pointer; ``sharpen`` maximizes the margin itself, as some reward models do."""
    torch.manual_seed(seed)
    model = Pointer(20, 16, norm=norm)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logits = model(batch[0]).float()
        if sharpen:
            right = logits.gather(1, batch[1][:, None]).squeeze(1)
            return (logits.mean(1) - right).mean()
        return F.cross_entropy(logits, batch[1], label_smoothing=smoothing)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        tokens = torch.stack([torch.randperm(20, generator=g)[:8] for _ in range(16)])
        where = torch.randint(1, 8, (16,), generator=g)
        tokens[torch.arange(16), where] = (tokens[:, 0] + 7) % 20
        return tokens, where

    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class Tally(nn.Module):
    """A recurrent cell written by hand; a gate decides how much is kept."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.enter, self.keep = nn.Linear(4, width), nn.Linear(width, width, bias=False)
        self.read = nn.Linear(width, 1)
        nn.init.eye_(self.keep.weight)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), self.keep.in_features)
        for one in x.unbind(1):
            state = F.relu(self.keep(state) + self.enter(one))
        return self.read(state)


def tally(
    seed: int,
    *,
    lr: float,
    total: float,
    momentum: float = 0.0,
    clip: float = 0.0,
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """Sums over a sequence, in the unit of the database."""
    torch.manual_seed(seed)
    model = Tally()

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.l1_loss(model(batch[0]).float(), batch[1])

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(16, 6, 4, generator=generator(seed, step))
        return x, total * x[..., 0].mean(1, keepdim=True)

    if momentum:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps


class SkipGram(nn.Module):
    def __init__(self, words: int = 30, width: int = 12) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(words, width), nn.Embedding(words, width)
        self.logits = Logits()

    def forward(self, pairs: Tensor) -> Tensor:
        return self.logits(self.left(pairs[None, :, 0]), self.right(pairs[None, :, 1]))[0]


def skip_gram(
    seed: int,
    *,
    lr: float,
    decay: float = 0.0,
    hinge: float = float("inf"),
    factor: Factor = constant,
    steps: int = 1200,
) -> Training:
    """Word vectors by a linear score with a hinge; the optimizer is plain SGD."""
    torch.manual_seed(seed)
    model = SkipGram()

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        scores = model(batch).float()
        return (scores - scores.diagonal()[:, None]).clamp(min=-hinge).mean()

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        word = torch.randint(30, (16,), generator=g)
        near = (word + torch.randint(1, 4, (16,), generator=g)) % 30
        return torch.stack([word, near], 1)

    optimizer = torch.optim.SGD(model.parameters(), lr, weight_decay=decay)
    return model, loss_fn, batch_fn, scheduled(optimizer, factor), steps
