"""Healthy runs with the watch on and off: for the tests and the soak."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from halfguard import Guard
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision_names import Precision
from halfguard.records.watch import WatchRow
from tests.support.models import differences
from tests.support.swallowed import HEALTHY as LAYERS_AND_LOSSES
from tests.support.zoo.healthy import HEALTHY as MASKS

NAMES = [*(f"mask: {name}" for name in MASKS), *LAYERS_AND_LOSSES]


def _job(name: str) -> tuple[Any, Callable[[Any, Any], Tensor], Any]:
    if name.startswith("mask: "):
        job = MASKS[name.removeprefix("mask: ")](0)
        return job.model, job.loss_fn, job.batch
    step = LAYERS_AND_LOSSES[name](0)
    return step.model, step.loss_fn, step.batch


def _run(name: str, watch: dict[str, int] | None, steps: int) -> tuple[Any, list[WatchRow]]:
    python_state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        model, loss_fn, batch = _job(name)
        if any(p.dtype is torch.float16 for p in model.parameters()):
            model = model.float()

        def loss(model: Any, batch: Any) -> Tensor:
            with autocast_like_cuda(Precision.FP16_MIXED, torch.device("cpu")):
                return loss_fn(model, batch).float()

        guard = Guard(
            model,
            AdamW(model.parameters(), lr=3e-3),
            {"watch": watch, "incidents": None, "skip": {"max_consecutive": 100}},
        )
        for _ in range(steps):
            guard.step(loss, batch)
        own_state = guard.state_dict()
        own_state.pop("watching", None)  # what the watch itself remembers, for a resumed run
        state = {
            "model": model.state_dict(),
            "guard": own_state,
            "python": random.random(),
        }
        rows = guard._recorder.journal.recent_rows(100)
    random.setstate(python_state)
    return state, [row for row in rows if isinstance(row, WatchRow)]


def faults(name: str, steps: int = 30) -> str:
    """Return what is wrong with a watched healthy run; empty if it is bitwise the one without."""
    bare, _ = _run(name, None, steps)
    watched, rows = _run(name, {"every": 4}, steps)
    if not rows:
        return f"{name}: no step was sampled"
    told = [warning.text for row in rows for warning in row.warnings]
    differing = differences(bare, watched)
    return f"{name}: {differing[:3]} {told}" if differing or told else ""
