"""Gradients of FP16 without a scaler: what a step in FP32 shows to be lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from halfguard.investigation.passes import Event, Misused, PassResult, TrialPlan
from halfguard.investigation.script_passes import Investigation
from halfguard.investigation.trying import relative_error

_KEPT = 0.8  # of the norm of the gradients in FP32
_NOISY = 0.5  # relative error of gradients


def confirm_lost_gradients(
    one: Investigation, first: PassResult, misused: Misused
) -> Iterator[Misused]:
    """Yield gradients without a scaler, if the same step has others in FP32."""
    is_off = any(known.kind == "scaler off" for known in first.misuse)  # which tells the same
    if is_off or not first.made.autocast_device:
        return
    event = Event(kind="loss", how="", step=0, backward=misused.backward)
    found = one.run("judge", "trying FP32", event=event)
    if not found.trials or found.differs_at is not None or not found.trials[0].gradients:
        return
    norms = _norms(Path(found.trials[0].gradients), misused.sizes)
    pairs = [(half, full) for half, full in zip(misused.norms, norms, strict=False) if full > 0]
    lost = [full for half, full in pairs if half < _KEPT * full]
    if len(lost) > len(pairs) / 2 or _is_noise(one, event, found.trials[0].gradients):
        exponent = min(24, max(4, round(-math.log2(max(norms))) + 3))
        yield misused.model_copy(update={"scale": 2.0**exponent})


def _is_noise(one: Investigation, event: Event, full: str) -> bool:
    """Return whether gradients that kept their norm are still mostly rounding errors."""
    same = TrialPlan(name="unchanged", kind="unchanged")
    found = one.run("judge", "running the step again", event=event, change=same)
    kept = found.trials[0].gradients if found.trials and found.differs_at is None else ""
    return (relative_error(kept, full) or 0.0) > _NOISY


def _norms(file: Path, sizes: tuple[int, ...]) -> list[float]:
    """Return the norm of each gradient that a trial has kept."""
    values = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float64)
    if sum(sizes) != len(values):
        return []
    return [float(one.norm()) for one in torch.split(values, list(sizes))]
