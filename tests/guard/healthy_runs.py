"""Healthy runs with ``watch``, with ``heal``, with both and with neither: for the tests and the soak."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.models.swallowed import HEALTHY as LAYERS_AND_LOSSES
from benchmarks.models.zoo.healthy import HEALTHY as MASKS
from torch import Tensor
from torch.optim import AdamW

from halfguard import Guard
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.islands import is_island
from halfguard.precision_names import Precision
from halfguard.records import HealingRow
from halfguard.records.watch import WatchRow
from tests.support.models import differences

NAMES = [*(f"mask: {name}" for name in MASKS), *LAYERS_AND_LOSSES]
WATCH: dict[str, Any] = {"watch": {"every": 4}}
HEAL: dict[str, Any] = {"heal": {}}
BOTH = WATCH | HEAL

Run = tuple[Any, int, list[WatchRow | HealingRow]]


def job(name: str) -> tuple[Any, Callable[[Any, Any], Tensor], Any]:
    """Return the model of a healthy run, its loss function and its batch."""
    if name.startswith("mask: "):
        made = MASKS[name.removeprefix("mask: ")](0)
        return made.model, made.loss_fn, made.batch
    step = LAYERS_AND_LOSSES[name](0)
    return step.model, step.loss_fn, step.batch


def _run(name: str, extra: dict[str, Any], steps: int) -> Run:
    """Return the end of a run, the number of its islands, and the rows of the watch and the healing."""
    python_state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        model, loss_fn, batch = job(name)
        if any(p.dtype is torch.float16 for p in model.parameters()):
            model = model.float()

        def loss(model: Any, batch: Any) -> Tensor:
            with autocast_like_cuda(Precision.FP16_MIXED, torch.device("cpu")):
                return loss_fn(model, batch).float()

        skip = {"on_nonfinite": "retry_fp32", "max_consecutive": 100}
        optimizer = AdamW(model.parameters(), lr=3e-3)
        guard = Guard(model, optimizer, {"incidents": None, "skip": skip} | extra)
        for _ in range(steps):
            guard.step(loss, batch)
        if guard.config.heal is not None:
            guard.audit(loss, batch)  # heals what it finds
        # What watch and heal themselves remember, for a resumed run, is no part of the comparison.
        own_state = guard.state_dict() | {"watching": None, "healing": None}
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "guard": own_state,
            "python": random.random(),
        }
        islands = sum(map(is_island, model.modules()))
        rows = guard._recorder.journal.recent_rows(100)
    random.setstate(python_state)
    return state, islands, [row for row in rows if isinstance(row, WatchRow | HealingRow)]


def faults(name: str, extra: dict[str, Any], steps: int = 30) -> str:
    """Return how a healthy run with ``extra`` differs from one without it; empty if it does not."""
    bare, _, _ = _run(name, {}, steps)
    state, islands, rows = _run(name, extra, steps)
    sampled = [row for row in rows if isinstance(row, WatchRow)]
    if "watch" in extra and not sampled:
        return f"{name}: no step was sampled"
    told = [warning.text for row in sampled for warning in row.warnings]
    told += [row.text for row in rows if isinstance(row, HealingRow)]
    wrong = differences(bare, state)
    return f"{name}: {wrong[:3]} {told} {islands} islands" if wrong or told or islands else ""
