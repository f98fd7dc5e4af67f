"""Choose the trials of a bad step: those that could lead to a cure of its culprit.

FP32 comes first: without it no change of precision is worth trying. A lower loss scale is tried only if the
loss scale is what overflowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from halfguard.investigation.passes import HALF_NAMES, Event, PassResult, TrialPlan, TrialResult
from halfguard.records.autopsy import Culprit
from halfguard.trials.proof import relative, squared_difference

FP32 = TrialPlan(name="the whole step in fp32", kind="fp32")
BF16 = TrialPlan(name="autocast in bfloat16", kind="bf16")
_LINES = 4  # that are changed together
FAR = 0.2  # relative error of gradients
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
        yield from (_judged(one, full) for one in _ran(run(BF16)))
    for plan in _line_trials(culprit, in_fp32=full.trial.good):
        tried = _grown(plan, run) if plan.kind == "statement" else run(plan)
        if tried is not None and (plan.kind in _IN_FP32 or tried.stable or tried.rewrite):
            yield (judged := _judged(tried, full))
            near = not (judged.trial.error_as_written or 0) > FAR
            if plan.kind in ("statement", "slice") and tried.trial.good and near:
                break
    if full.trial.good and culprit.module and culprit.dtype in HALF_NAMES:
        island = TrialPlan(
            name=f"{culprit.module!r} in FP32",
            kind="island",
            module=culprit.module,
            scale=CALIBRATED,
        )
        yield from (_judged(one, full) for one in _ran(run(island)))
    if event.kind == "scale" or culprit.phase == "backward":
        yield from _lower_scale(event, run)


def _line_trials(culprit: Culprit, *, in_fp32: bool) -> Iterator[TrialPlan]:
    """Yield the changes of the culprit's line; the whole function comes last, if the line is not enough."""
    if not culprit.file:
        return
    same: dict[str, Any] = {"places": ((culprit.file, culprit.line),), "scale": CALIBRATED}
    yield TrialPlan(name="the composition", kind="composition", **same)
    yield TrialPlan(name=f"stable operations for {culprit.op}", kind="stable", **same)
    if in_fp32 and culprit.dtype in HALF_NAMES:
        yield TrialPlan(name="this line in FP32", kind="statement", **same)
        name = "this line and those that lead to it, in FP32"
        yield TrialPlan(name=name, kind="slice", **same)
        yield TrialPlan(name="the function around this line in FP32", kind="function", **same)


def _grown(plan: TrialPlan, run: Run) -> TrialResult | None:
    """Run a change of a line; as long as the next bad number comes from another line, change that one too."""
    tried = run(plan)
    while tried is not None and not tried.trial.good and len(plan.places) < _LINES:
        place = tried.following
        if place is None or place in plan.places:
            break
        places = (*plan.places, place)
        lines = " and ".join(f"{Path(file).name}:{line}" for file, line in places)
        plan = plan.model_copy(update={"places": places, "name": f"{lines} in FP32"})
        tried = run(plan)
    return tried


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


def _judged(tried: TrialResult, full: TrialResult) -> TrialResult:
    """Note how far the gradients are from those of FP32."""
    if not tried.trial.good:
        return tried
    error = _relative_error(tried.gradients, full.gradients)
    trial = tried.trial.model_copy(update={"error_as_written": error})
    return tried.model_copy(update={"trial": trial})


def _relative_error(one: str, other: str) -> float | None:
    """Return the relative error of all gradients together, as a norm."""
    if not one or not other:
        return None
    a, b = (
        torch.frombuffer(bytearray(Path(p).read_bytes()), dtype=torch.float64) for p in (one, other)
    )
    return relative(*squared_difference([a], [b])) if a.shape == b.shape else None
