"""Measure the time of a guarded step over the bare loop, and check that the cost is the same for any model.

A ratio of times is a figure, not a promise: it depends on the machine, and the same loop measured against
itself shows the noise. What must hold is counted: the operations that the guard adds are the same for a
model with three times as many layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.acceptance.jobs import FUSED
from halfguard.acceptance.large_job import LAYERS, LargeJob, Step, width_for
from halfguard.acceptance.setting import Cases, Setting, wait_for
from halfguard.records.acceptance import AcceptanceCase
from halfguard.step.random_state import seeded
from halfguard.workload.timing import medians, ratios, time_interleaved

NAME = "cost"
CLAIM = "The guard adds the same few operations to a step of any model. Its time is measured, not judged."

WARM_UP = 3
COUNTING_WIDTH = 16


class _Counter(TorchDispatchMode):
    """Counts all operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def run(setting: Setting) -> Cases:
    """Yield a case for the operations and one for the time, with a fused optimizer and another."""
    for optimizer in (FUSED, "AdamW foreach"):
        with seeded(0):
            yield _operations(setting.device, optimizer)
            yield _time(setting, optimizer)


def _operations(device: torch.device, optimizer: str) -> AcceptanceCase:
    few, many = (_added(device, optimizer, layers) for layers in (LAYERS, 3 * LAYERS))
    grows = f"{few} added operations with {LAYERS} layers, {many} with {3 * LAYERS}"
    problem = "" if few == many else grows
    return AcceptanceCase.judged(f"added operations, {optimizer}", problem, added_operations=few)


def _added(device: torch.device, optimizer: str, layers: int) -> int:
    bare, guarded = (LargeJob(device, optimizer, COUNTING_WIDTH, layers) for _ in range(2))
    return _count(guarded.guarded(), device) - _count(bare.bare(), device)


def _count(step: Step, device: torch.device) -> int:
    for _ in range(WARM_UP):
        step()
    counter = _Counter()
    with counter:
        step()
    wait_for(device)
    return counter.count


def _time(setting: Setting, optimizer: str) -> AcceptanceCase:
    jobs = [LargeJob(setting.device, optimizer, width_for(setting)) for _ in range(3)]
    steps = {"bare": jobs[0].bare(), "guarded": jobs[1].guarded(), "bare again": jobs[2].bare()}
    seconds = time_interleaved(steps, rounds=setting.size.rounds, warmup=WARM_UP)
    found = ratios(seconds, against="bare")
    figures = {"seconds per bare step": medians(seconds)["bare"], "rounds": setting.size.rounds}
    for name in ("guarded", "bare again"):
        spread = found[name]
        figures |= {
            f"{name} over bare": spread.median,
            f"{name}, lower quartile": spread.low,
            f"{name}, upper quartile": spread.high,
        }
    return AcceptanceCase(name=f"time of a step, {optimizer}", figures=figures)
