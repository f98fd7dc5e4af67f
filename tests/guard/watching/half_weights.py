"""Runs with 16-bit weights: some that their schedule freezes, and healthy ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from halfguard import Guard
from halfguard.records.watch import WatchRow, WatchWarning

STEPS = 300
STALLED = 0.9  # share of weights of a layer that a step leaves as they are

Schedule = Callable[[float], float]

# By the share of steps: what the highest rate is multiplied with.
FALLING: dict[str, Schedule] = {
    "a hundredth from the middle on": lambda t: 1.0 if t < 0.5 else 0.004,
    "in three steps": lambda t: (1.0, 0.1, 0.004)[min(int(3 * t), 2)],
    "exponential": lambda t: math.exp(-7 * t),
    "linear to 0.3%, then flat": lambda t: max(1 - 1.8 * t, 0.003),
    "cosine to 0.3%, then flat": lambda t: (
        0.003 + max(0.0, math.cos(min(t / 0.6, 1) * math.pi / 2))
    ),
}
FINE: dict[str, Schedule] = {
    "constant": lambda _: 1.0,
    "half from the middle on": lambda t: 1.0 if t < 0.5 else 0.5,
    "linear to 0": lambda t: 1 - t,
    "cosine to 0": lambda t: 0.5 + 0.5 * math.cos(math.pi * t),
    "warm-up": lambda t: min(1.0, 0.1 + 5 * t),
}


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda parameters: AdamW(parameters, lr=1e-2),
    "Adam": lambda parameters: Adam(parameters, lr=6e-3),
}


def _loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


class HalfWeights:
    """One run: its warnings by step, and the step at which each layer stopped to change."""

    def __init__(self, schedule: Schedule, optimizer: str = "AdamW", seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).bfloat16()
        made = OPTIMIZERS[optimizer](model.parameters())
        scheduler = LambdaLR(made, lambda step: schedule(step / STEPS))
        config = {"precision": "bf16-mixed", "watch": {"every": 10}, "incidents": None}
        guard = Guard(model, made, config, scheduler=scheduler)
        self.told: dict[int, list[WatchWarning]] = {}
        self.stalled: dict[str, int] = {}
        rest = dict.fromkeys(("0", "2"), 0)
        for step in range(STEPS):
            before = {name: model.get_parameter(f"{name}.weight").clone() for name in rest}
            generator = torch.Generator().manual_seed(1000 * seed + step)
            x = torch.randn(32, 16, generator=generator).bfloat16()
            guard.step(_loss, (x, torch.randint(4, (32,), generator=generator)))
            for name, old in before.items():
                same = (model.get_parameter(f"{name}.weight") == old).float().mean().item()
                rest[name] = rest[name] + 1 if same > STALLED else 0
                if rest[name] == 5 and schedule(step / STEPS) > 0:
                    self.stalled.setdefault(name, step - 4)
            rows = [r for r in guard._recorder.journal.recent_rows(3) if isinstance(r, WatchRow)]
            if rows and rows[-1].step == step and rows[-1].warnings:
                self.told[step] = list(rows[-1].warnings)

    def announced(self, module: str) -> int | None:
        """Return the step at which a layer was announced to freeze."""
        for step, warnings in self.told.items():
            if any(w.warning == "updates_lost" and w.module == module for w in warnings):
                return step
        return None


def missed(name: str, optimizer: str = "AdamW", seed: int = 0) -> str:
    """Return what is wrong with the announcement of a stalling run; empty if it came before."""
    run = HalfWeights(FALLING[name], optimizer, seed)
    if not run.stalled:
        return f"{name}, {optimizer}: no layer stalled"
    ahead = {module: (run.announced(module), step) for module, step in run.stalled.items()}
    late = [one for one in ahead.values() if one[0] is None or one[0] >= one[1]]
    return f"{name}, {optimizer}: announced and stalled {ahead}" if late else ""


def false_alarms(name: str, optimizer: str = "AdamW", seed: int = 0) -> str:
    """Return the warnings of a healthy run."""
    run = HalfWeights(FINE[name], optimizer, seed)
    return f"{name}, {optimizer}: {run.told}" if run.told else ""
