"""Runs in which a stream of features grows: in depth, in time, and before a softmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import Factor, constant, generator, scheduled
from benchmarks.models.forecast_runs.third_layers import Scores, mlp, seeded
from benchmarks.models.planted.base import Training


class Residual(nn.Module):
    """Add to the stream what two layers make of it, without a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = mlp(width, 2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        stream: Tensor = x + self.change(x)
        return stream


def coding_rate(seed: int, lr: float, depth: int, steps: int = 800) -> Training:
    """Learn features of readings that fill as much volume as they can.

    The loss is the logarithm of the volume of each batch's features. They should be put on a sphere first,
    and are not.
    """
    g = seeded(seed)
    sources = torch.randn(6, 20, generator=g)
    blocks = (Residual(24) for _ in range(depth))
    model = nn.Sequential(nn.Linear(20, 24), *blocks, nn.Linear(24, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        x = torch.randn(64, 6, generator=g) @ sources
        return x / 2 + 0.3 * torch.randn(64, 20, generator=g)

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        features = model(batch).float()
        with torch.autocast("cpu", enabled=False):
            covariance = features.T @ features / len(features)
            loss: Tensor = -torch.logdet(torch.eye(8) + covariance) / 2
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


class Recurrent(nn.Module):
    """Read a sequence with a linear recurrence; return the last state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.recur = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.recur.weight.copy_(torch.eye(width))

    def forward(self, x: Tensor) -> Tensor:
        inputs = self.read(x)
        state: Tensor = inputs[:, 0]
        for step in range(1, x.shape[1]):
            state = inputs[:, step] + self.recur(state)
        return state


def first_tokens(seed: int, lr: float, length: int, steps: int = 900) -> Training:
    """Name the first token of a sequence by the cosine between a recurrent state and each class.

    The cosine hides the state's length, and the later tokens are noise: the more the state grows from token
    to token, the better it remembers the first.
    """
    g = seeded(seed)
    tokens = torch.randn(8, 6, generator=g)
    classes = functional.normalize(torch.randn(8, 16, generator=g), dim=-1)
    model = nn.Sequential(Recurrent(6, 32), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        label = torch.randint(8, (24,), generator=g)
        x = torch.randn(24, length, 6, generator=g)
        x[:, 0] = tokens[label] + 0.3 * x[:, 0]
        return x, label

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        direction = functional.normalize(model(batch[0]).float(), dim=-1)
        return functional.cross_entropy(5 * (direction @ classes.T).float(), batch[1])

    return model, loss_fn, batch_fn, optimizer, steps


class Lookup(nn.Module):
    """Answer a question with the entries of a list: attention without a scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 64)
        self.key = nn.Linear(width, 64)
        self.scores = Scores(1.0)
        self.softmax = nn.Softmax(-1)

    def forward(self, question: Tensor, entries: Tensor) -> Tensor:
        scores = self.scores(self.query(question), self.key(entries))
        weights: Tensor = self.softmax(scores)
        return weights


def nearest(seed: int, lr: float, factor: Factor = constant, steps: int = 900) -> Training:
    """Find the entry of a list that is most like a question; close calls ask for ever sharper attention."""
    g = seeded(seed)
    measure = torch.randn(12, 12, generator=g) / 3
    model = Lookup(12)
    optimizer = scheduled(torch.optim.Adam(model.parameters(), lr=lr), factor)

    def batch_fn(step: int) -> tuple[Tensor, Tensor, Tensor]:
        g = generator(seed, step)
        question = 3 * torch.randn(8, 12, 12, generator=g)
        entries = 3 * torch.randn(8, 20, 12, generator=g)
        return question, entries, (question @ measure @ entries.mT).argmax(-1)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        weights = model(batch[0], batch[1]).float()
        right = weights.gather(-1, batch[2][..., None])
        loss: Tensor = (1 - right).mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps
