"""Small real trainings in FP32 and FP16, for writers that log them with a tracker's own package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

PRECISIONS = ("fp32", "fp16")
SEEDS = range(5)
STEPS, EVERY = 40, 10

Numbers = dict[str, dict[int, float]]  # precision -> seed -> the last validation loss


def folder() -> Path:
    """Return the folder that the writer was started for."""
    return Path(sys.argv[1])


def report(numbers: Numbers) -> None:
    """Print what was logged last in each run, for the test that started the writer."""
    print("\n" + json.dumps(numbers))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(256, 8, generator=generator)
    return x, x[:, :1].sin() + 0.3 * torch.randn(256, 1, generator=generator)


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def train(precision: str, seed: int) -> Iterator[tuple[int, float]]:
    """Train, and yield step and validation loss; the loss is one that float32 can hold exactly."""
    x, y = data()
    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, STEPS + 1):
        rows = torch.randint(200, (32,))
        with torch.autocast("cpu", torch.float16, enabled=precision == "fp16"):
            loss = nn.functional.mse_loss(model(x[rows]).float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                yield step, nn.functional.mse_loss(model(x[200:]), y[200:]).item()


def all_runs() -> Iterator[tuple[str, int, list[tuple[int, float]]]]:
    """Yield precision, seed and curve of the ten runs."""
    for precision in PRECISIONS:
        for seed in SEEDS:
            yield precision, seed, list(train(precision, seed))
