"""Runs in which a magnitude grows until half overflows, and runs in which it only seems to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from halfguard import Guard
from halfguard.errors import TrainingHaltedError
from halfguard.records.watch import WatchRow

Training = tuple[nn.Module, Callable[[Any, Any], Tensor], Callable[[int], Any], Optimizer, int]
EVERY = 5


class Net(nn.Module):
    """A small network whose ``body`` has the magnitude in question."""

    def __init__(self, body: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(self, x)
        return hidden, self.last(hidden / (hidden.abs().amax(-1, keepdim=True) + 1))


def _plain(net: Net, x: Tensor) -> Tensor:
    return net.second(torch.relu(net.first(x)))


def _bounded(net: Net, x: Tensor) -> Tensor:
    hidden = net.second(torch.tanh(net.first(x)))
    return hidden * hidden


def _squared(net: Net, x: Tensor) -> Tensor:
    hidden = net.second(torch.relu(net.first(x)))
    return hidden * hidden


def _scores(net: Net, x: Tensor) -> Tensor:
    query, key = net.first(x), net.second(torch.relu(net.first(x)))
    return torch.softmax((query @ key.T).float(), -1).to(key.dtype) @ key + query


def _residual(net: Net, x: Tensor) -> Tensor:
    hidden = net.first(x)
    for _ in range(3):
        hidden = hidden + net.second(hidden)
    return hidden


def _batches(seed: int, size: Callable[[int], float] = lambda _: 1.0) -> Callable[[int], Any]:
    def batch(step: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        x = torch.randn(16, 8, generator=generator) * size(step)
        return x, torch.randint(4, (16,), generator=generator)

    return batch


def _train(
    seed: int,
    body: Callable[[Net, Tensor], Tensor],
    push: float,
    *,
    size: Callable[[int], float] = lambda _: 1.0,
    adam: float = 0.0,
    steps: int = 500,
) -> Training:
    """Return a classifier; with a positive ``push``, its hidden numbers are rewarded for growing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Net(body)

    def loss_fn(model: Any, batch: Any) -> Tensor:
        hidden, logits = model(batch[0])
        wide = hidden.float()
        size_now = wide.square().mean()
        reward: Tensor = push * size_now / size_now.detach().sqrt()
        return F.cross_entropy(logits.float(), batch[1]) - reward

    made = AdamW(model.parameters(), lr=adam) if adam else SGD(model.parameters(), lr=0.1)
    return model, loss_fn, _batches(seed, size), made, steps


def _growing_input(pace: float) -> Callable[[int], float]:
    return lambda step: 2.0 ** (step / pace)


DRIFTING: dict[str, Callable[[int], Training]] = {
    "growing input": lambda s: _train(s, _plain, 0.0, size=_growing_input(28.0 + 2 * s)),
    "rewarded squares": lambda s: _train(s, _bounded, 0.04, steps=900),
    "rewarded growth": lambda s: _train(s, _plain, 0.2 + 0.02 * s, steps=900),
    "rewarded scores": lambda s: _train(s, _scores, 0.1, steps=900),
    "growing input, squared": lambda s: _train(s, _squared, 0.0, size=_growing_input(24.0 + 2 * s)),
    "growing residuals": lambda s: _train(s, _residual, 0.0, size=_growing_input(35.0)),
}


STABLE: dict[str, Callable[[int], Training]] = {
    "plain": lambda s: _train(s, _plain, 0.0, adam=3e-3),
    "squared": lambda s: _train(s, _squared, 0.0, adam=1e-2),
    "scores": lambda s: _train(s, _scores, 0.0, adam=1e-2),
    "residuals": lambda s: _train(s, _residual, 0.0, adam=3e-3),
    "loud": lambda s: _train(s, _plain, 0.0, size=lambda _: 6000.0, adam=1e-3),
    "seasons": lambda s: _train(
        s, _plain, 0.0, size=lambda i: 300 * 2.0 ** (2 * math.sin(i / 40)), adam=1e-3
    ),
    "warm-up": lambda s: _train(
        s, _plain, 0.0, size=lambda i: 500 * min(1.0, 0.05 + i / 150), adam=1e-3
    ),
}


class Watched:
    """A run with its rows, the steps of its first warning of overflow and of its first overflow.

    ``halted`` is the step at which the guard ended the run, because gradients overflowed again and again.
    """

    def __init__(self, training: Training, *, every: int = EVERY, **config: Any) -> None:
        model, loss_fn, batch_of, optimizer, steps = training
        given = {"watch": {"every": every}, "scale": {"init": 256.0}, "incidents": None, **config}
        guard = Guard(model, optimizer, given)
        self.warned: int | None = None
        self.overflowed: int | None = None
        self.halted: int | None = None
        self.rows: list[WatchRow] = []
        for step in range(steps):
            try:
                cause = guard.step(loss_fn, batch_of(step)).cause
            except TrainingHaltedError:
                self.halted = step
                break
            rows = [
                row for row in guard._recorder.journal.recent_rows(3) if isinstance(row, WatchRow)
            ]
            if rows and (not self.rows or rows[-1].step > self.rows[-1].step):
                self.rows.append(rows[-1])
                found = [one for one in rows[-1].warnings if one.warning == "overflow_ahead"]
                if found and self.warned is None:
                    self.warned, self.text = step, found[0].text
            beyond = self.rows and self.rows[-1].infinite and self.rows[-1].step == step
            if (cause is not None and str(cause) == "forward_overflow") or beyond:
                self.overflowed = step
                break
