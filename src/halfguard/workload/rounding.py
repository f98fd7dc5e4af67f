"""``rounding``: run one step in 16-bit precision, and report which lines lose digits.

For a run that is finite and worse than FP32: there is no first bad number then, but there is a line that
costs the most accuracy. The step is taped and repeated in float64 (``tracing.rounding``). Each line that
costs more than rounding must is then run in FP32, to see whether the error really falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from halfguard.errors import UsageError
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.modes import eagerly
from halfguard.precision_names import Precision
from halfguard.records.plan import AnyIsland, Island, LineIsland
from halfguard.records.rounding import LineInFloat, RoundingReport
from halfguard.step.loss import LossFunction
from halfguard.step.parameters import without_wrappers
from halfguard.tracing.rounding import attribute, norm, tape_finite_step
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.line_islands import LineIslands, class_of
from halfguard.trials.producer import modules_by_name
from halfguard.workload.job import Workload
from halfguard.workload.training import Advance, TrainingStep

_PRECISIONS = {
    "float16": Precision.FP16_MIXED,
    "bfloat16": Precision.BF16_MIXED,
    "fp16-mixed": Precision.FP16_MIXED,
    "bf16-mixed": Precision.BF16_MIXED,
}


def rounding(
    model: nn.Module, loss_fn: LossFunction, batch: Any, *, precision: str = "float16"
) -> RoundingReport:
    """Run ``loss_fn(model, batch)`` and its backward pass, and report which lines lose digits.

    The step runs under autocast to ``precision``, ``"float16"`` or ``"bfloat16"``. On a CPU, CUDA's autocast
    rules apply. If the model has 16-bit weights, they stay 16-bit. The reference step in float64 uses the
    same random numbers and takes the same branches. Gradients, buffers and random state are restored
    afterwards. Compiled models run in eager mode.
    """
    if precision not in _PRECISIONS:
        raise UsageError(
            f"rounding(precision={precision!r}): this is not a 16-bit precision.",
            cure=f"Allowed: {', '.join(_PRECISIONS)}.",
        )
    step = _Step(model, loss_fn, batch, _PRECISIONS[precision])
    report = step.report()
    confirmed = tuple(step.confirm(found) for found in report.findings)
    return report.model_copy(update={"findings": confirmed})


def rounding_of_job(
    workload: Workload,
    *,
    steps: int = 20,
    precision: str = "float16",
    islands: Sequence[AnyIsland] = (),
    advance: Advance | None = None,
) -> RoundingReport:
    """Train a copy of ``workload`` for ``steps`` steps in FP32, then report which lines lose digits.

    ``islands`` stay in FP32 in the step that is reported.
    """
    fresh, lines = workload.fresh(), LineIslands()
    train = TrainingStep(fresh, Precision.FP32)
    *seen, last = fresh.take(steps + 1)
    for batch in seen:
        train(batch)
        if advance is not None:
            advance()
    with AppliedIslands(fresh.model, (), lines).trial(islands), lines.active():
        return rounding(fresh.model, fresh.loss, last, precision=precision)


class _Step:
    def __init__(
        self, model: nn.Module, loss_fn: LossFunction, batch: Any, precision: Precision
    ) -> None:
        self._model, self._loss_fn, self._batch = model, loss_fn, batch
        self._precision = precision
        self._is_fp16 = precision is Precision.FP16_MIXED
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def report(self) -> RoundingReport:
        dtype = torch.float16 if self._is_fp16 else torch.bfloat16
        with eagerly():
            step = tape_finite_step(self._run, self._model, is_fp16=self._is_fp16)
        return attribute(step, dtype)

    def _run(self) -> object:
        with autocast_like_cuda(self._precision, self._device):
            return self._loss_fn(self._model, self._batch)

    def confirm(self, found: LineInFloat) -> LineInFloat:
        """Return a finding with the error of the step that runs its line, or module, in FP32."""
        lines = LineIslands()
        applied = AppliedIslands(self._model, (), lines)
        with applied.trial([island_for(found, self._model)]), lines.active(), eagerly():
            step = tape_finite_step(self._run, self._model, is_fp16=self._is_fp16)
        step.tape.repeat()
        loss, grads = step.errors()
        return found.model_copy(update={"tried": abs(loss) if found.by == "loss" else norm(grads)})


def island_for(found: LineInFloat, model: nn.Module) -> AnyIsland:
    """Return the island that runs a line, or the modules of torch that it calls, in FP32."""
    if found.calls_module:
        return Island(module=found.calls_module)
    file, _, line = found.place.rpartition(":")
    own = modules_by_name(model).get(without_wrappers(found.modules[0])) if found.modules else None
    within = "" if own is None else class_of(own)
    return LineIsland(file=file, line=int(line), code=found.code, within=within)
