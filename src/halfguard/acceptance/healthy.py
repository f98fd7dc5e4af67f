"""Check that a healthy guarded run ends with the weights of the bare loop, bit by bit.

The bare loop runs twice first. If its two runs differ, the device is not deterministic, and a difference
would prove nothing: the case is not run, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from halfguard.acceptance.comparing import deterministic, differences, state_of
from halfguard.acceptance.jobs import (
    MAX_NORM,
    MODELS,
    OPTIMIZERS,
    Batch,
    bare_step,
    loss_fn,
    make_batch,
    make_model,
)
from halfguard.acceptance.setting import Cases, Setting
from halfguard.guard.guard import Guard
from halfguard.precision_names import Precision
from halfguard.records.acceptance import AcceptanceCase
from halfguard.step.random_state import seeded

NAME = "healthy runs"
CLAIM = (
    "A healthy guarded run is bitwise the bare loop: weights, buffers, optimizer state, loss scale."
)

SCALE = 1024.0
_PRECISIONS = (Precision.FP16_MIXED, Precision.BF16_MIXED, Precision.FP32)


class _Job(NamedTuple):
    model: str
    optimizer: str
    accumulate: int
    precision: Precision

    def __str__(self) -> str:
        parts = f"{self.model}, {self.optimizer}, {self.precision.value}"
        return parts if self.accumulate == 1 else f"{parts}, {self.accumulate} micro-batches"


def run(setting: Setting) -> Cases:
    """Yield a case for each model, optimizer, precision and number of micro-batches."""
    with deterministic():
        for job in _jobs(every=setting.size.every_combination):
            with seeded(3):
                yield _compare(job, setting)


def _jobs(*, every: bool) -> Iterator[_Job]:
    if every:
        for model, optimizer in itertools.product(MODELS, OPTIMIZERS):
            yield _Job(model, optimizer, 4, Precision.FP16_MIXED)
            yield from (_Job(model, optimizer, 1, precision) for precision in _PRECISIONS)
        return
    kinds = zip(MODELS, OPTIMIZERS, (1, 4, 1), _PRECISIONS, strict=True)
    yield from (_Job(*kind) for kind in kinds)


def _compare(job: _Job, setting: Setting) -> AcceptanceCase:
    count = setting.size.steps * job.accumulate
    data = [make_batch(seed, setting.device) for seed in range(count)]
    first, second = (_bare(job, data) for _ in range(2))
    if unequal := differences(first, second):
        detail = f"two bare runs differ on this device: {unequal}"
        return AcceptanceCase(name=str(job), status="not run", detail=detail)
    found, applied = _guarded(job, data)
    problem = differences(first, found)
    if not problem and applied != setting.size.steps:
        problem = f"{applied} of {setting.size.steps} steps were applied"
    steps, compared = setting.size.steps, len(first)
    return AcceptanceCase.judged(str(job), problem, steps=steps, values_compared=compared)


def _bare(job: _Job, data: list[Batch]) -> dict[str, Any]:
    device = data[0]["x"].device
    torch.manual_seed(3)
    model = make_model(job.model, device)
    optimizer = OPTIMIZERS[job.optimizer](model.parameters())
    scaler = torch.amp.GradScaler(
        device.type,
        init_scale=SCALE,
        growth_interval=_growth_interval(job, data),
        enabled=job.precision.needs_loss_scale,
    )
    for start in range(0, len(data), job.accumulate):
        bare_step(model, optimizer, scaler, data[start : start + job.accumulate], job.precision)
    return state_of(model, [optimizer], _scale(scaler, job))


def _guarded(job: _Job, data: list[Batch]) -> tuple[dict[str, Any], int]:
    torch.manual_seed(3)
    model = make_model(job.model, data[0]["x"].device)
    optimizer = OPTIMIZERS[job.optimizer](model.parameters())
    config = {
        "precision": job.precision.value,
        "clip": {"max_norm": MAX_NORM},
        "scale": {"init": SCALE, "growth_interval": _growth_interval(job, data)},
        "accumulate": job.accumulate,
        "spike": {"sigma": 1000.0},
    }
    guard = Guard(model, optimizer, config)
    for batch in data:
        guard.step(loss_fn, batch)
    applied = guard.summary().applied
    return state_of(model, [optimizer], _scale(guard.scaler, job)), applied


def _growth_interval(job: _Job, data: list[Batch]) -> int:
    """Let the loss scale grow three times, so that its growth is compared as well."""
    return len(data) // job.accumulate // 3


def _scale(scaler: torch.amp.GradScaler, job: _Job) -> list[float]:
    if not job.precision.needs_loss_scale:
        return []
    return [scaler.get_scale(), scaler.state_dict()["_growth_tracker"]]
