"""Choose the trials of a bad step: those that could lead to a cure of its culprit.

FP32 comes first: without it no change of precision is worth trying. A lower loss scale is tried only if the
loss scale is what overflowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from halfguard.investigation.passes import HALF_NAMES, Event, PassResult, TrialPlan, TrialResult
from halfguard.records.autopsy import Culprit

FP32 = TrialPlan(name="the whole step in fp32", kind="fp32")
BF16 = TrialPlan(name="autocast in bfloat16", kind="bf16")
_DOUBLINGS = 24
CALIBRATED = 1.0  # a scale that a scaler would reach, for changes of the computation
_IN_FP32 = ("statement", "slice", "function")
Run = Callable[[TrialPlan], TrialResult | None]


def run_trials(found: PassResult, event: Event, run: Run) -> Iterator[TrialResult]:
    """Run the trials that the culprit suggests, and yield those that ran."""
    full = run(FP32)
    if full is None:
        return
    yield full
    culprit = found.culprit
    if culprit is None or culprit.kind != "op":
        return
    if found.autocast == "float16":
        yield from (_judged(one, full, run) for one in _ran(run(BF16)))
    for plan in _line_trials(culprit, CALIBRATED, in_fp32=full.trial.good):
        tried = run(plan)
        if tried is not None and (plan.kind in _IN_FP32 or tried.stable or tried.rewrite):
            yield _judged(tried, full, run)
            if plan.kind in ("statement", "slice") and tried.trial.good:
                break
    if full.trial.good and culprit.module and culprit.dtype in HALF_NAMES:
        island = TrialPlan(
            name=f"{culprit.module!r} in FP32",
            kind="island",
            module=culprit.module,
            scale=CALIBRATED,
        )
        yield from (_judged(one, full, run) for one in _ran(run(island)))
    if event.kind == "scale" or culprit.phase == "backward":
        yield from _lower_scale(event, run)


def _line_trials(culprit: Culprit, scale: float, *, in_fp32: bool) -> Iterator[TrialPlan]:
    """Yield the changes of the culprit's line; the whole function comes last, if the line is not enough."""
    if not culprit.file:
        return
    place = culprit.file, culprit.line
    yield TrialPlan(name="the composition", kind="composition", place=place, scale=scale)
    name = f"stable operations for {culprit.op}"
    yield TrialPlan(name=name, kind="stable", place=place, scale=scale)
    if in_fp32 and culprit.dtype in HALF_NAMES:
        yield TrialPlan(name="this line in FP32", kind="statement", place=place, scale=scale)
        name = "this line and those that lead to it, in FP32"
        yield TrialPlan(name=name, kind="slice", place=place, scale=scale)
        name = "the function around this line in FP32"
        yield TrialPlan(name=name, kind="function", place=place, scale=scale)


def _ran(result: TrialResult | None) -> Iterator[TrialResult]:
    if result is not None:
        yield result


def _lower_scale(event: Event, run: Run) -> Iterator[TrialResult]:
    """Find the largest lower loss scale at which the step is good, by halving an interval of exponents."""
    if event.scale <= 1.0:
        return
    steps = int(math.log2(event.scale))
    bad, good, best = 0, steps + 1, None
    while good - bad > 1:
        middle = (good + bad) // 2
        scale = event.scale / 2.0**middle
        result = run(TrialPlan(name=f"loss scale {scale:g}", kind="scale", scale=scale))
        if result is None:
            return
        if result.trial.good:
            good, best = middle, result
        else:
            bad = middle
    yield from _ran(best)


def _judged(tried: TrialResult, full: TrialResult, run: Run) -> TrialResult:
    """Note how far the gradients are from those of FP32, and the largest loss scale that works."""
    if not tried.trial.good:
        return tried
    facts: dict[str, float | str | None] = {
        "error_as_written": _relative_error(tried.gradients, full.gradients)
    }
    if tried.scaled and tried.plan.scale is not None and tried.plan.kind != "scale":
        facts["largest_scale"] = largest = _largest_scale(tried.plan, run)
        if largest is None:
            facts["note"] = f"{tried.trial.note} largest loss scale unknown".strip()
    return tried.model_copy(update={"trial": tried.trial.model_copy(update=facts)})


def _largest_scale(plan: TrialPlan, run: Run) -> float | None:
    """Find the largest power of two, up to 2**24, at which a changed step is finite; None if not all ran."""
    low, high = 0, _DOUBLINGS + 1  # exponents: finite at the first, not at the second
    while high - low > 1:
        middle = (low + high) // 2
        result = run(plan.model_copy(update={"scale": 2.0**middle}))
        if result is None:
            return None
        low, high = (middle, high) if result.trial.good else (low, middle)
    return 2.0**low


def _relative_error(one: str, other: str) -> float | None:
    """Return the relative error of all gradients together, as a norm."""
    if not one or not other:
        return None
    a, b = (
        torch.frombuffer(bytearray(Path(p).read_bytes()), dtype=torch.float64) for p in (one, other)
    )
    if a.shape != b.shape:
        return None
    size = float(b.norm())
    return float((a - b).norm()) / size if size else None
