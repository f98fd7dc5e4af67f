"""A short training run that can be compared with another one: same seed, same batches, same updates.

In 16 bits a gradient overflow must not skip a batch, or the run cannot be compared with the FP32 run. The
step is repeated at half the loss scale, from the same random state and the same buffers, until its gradients
are finite. So a run has two outcomes: every step was applied, or a step failed for a reason that no loss
scale cures.

Ranges of modules say nothing about the loss function, and an overflow that becomes 0 leaves no trace in the
loss. So some steps are run once more under ``find_first_nonfinite``: it names the line, in a module or not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from halfguard.errors import HalfguardError, UsageError
from halfguard.precision.islands import make_islands
from halfguard.precision_names import Precision
from halfguard.probing.ranges import MAX_EXPONENT, MIN_EXPONENT
from halfguard.records.autopsy import Culprit
from halfguard.records.plan import AnyIsland, Island, LineIsland, PrecisionPlan
from halfguard.records.ranges import TraceStep
from halfguard.step.random_state import capture_random_state, restore_random_state, seeded
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.tracer import Detail, Tracer
from halfguard.trials.line_islands import LineIslands
from halfguard.workload import TrainingStep, Workload, final_loss
from halfguard.workload.training import Advance
from halfguard.workload.user_error import describe_error

AUDITS = 20  # of one run at most, evenly spread
_FACTOR = 16.0  # by which the loss scale falls if a gradient overflows


@dataclass(frozen=True)
class StepFault:
    """A step that is wrong in 16 bits: the operation, or the exception that it raised."""

    step: int
    culprit: Culprit | None
    raised: str = ""


class HalfAudit:
    """Audits steps of a workload in 16 bits; weights, gradients, buffers and generators stay as they are."""

    def __init__(self, workload: Workload, precision: Precision, scale: float) -> None:
        is_half = precision in (Precision.FP16_MIXED, Precision.BF16_MIXED)
        self._step = TrainingStep(workload, precision if is_half else Precision.FP16_MIXED)
        self._scale = scale if self._step.precision.needs_loss_scale else 1.0

    def find(self, batch: Any, index: int) -> list[StepFault]:
        """Run one batch; return the fault of its step, if it has one."""
        try:
            culprit = self._culprit(batch)
        except Exception as error:  # noqa: BLE001 - the user's code, in a precision it may not know
            return [StepFault(index, None, describe_error(error))]
        return [] if culprit is None else [StepFault(index, culprit)]

    def _culprit(self, batch: Any) -> Culprit | None:
        model = self._step.workload.model
        while True:
            scale = self._scale
            culprit = find_first_nonfinite(lambda s=scale: self._step.loss_of(batch) * s, model)  # type: ignore[misc]
            is_scale = culprit is not None and culprit.phase == "backward" and not culprit.swallowed
            if not is_scale or scale <= 1.0:
                return culprit
            self._scale = max(scale / _FACTOR, 1.0)  # a dynamic scale would fall


def audited_steps(steps: int) -> frozenset[int]:
    """Return the steps to audit: all of a short run, evenly spread ones of a long run."""
    count = min(steps, AUDITS)
    return frozenset(index * steps // count for index in range(count))


MIN_SCALE, MAX_SCALE = 2.0**MIN_EXPONENT, 2.0**MAX_EXPONENT


@dataclass(frozen=True)
class RunSetting:
    """The precision of a run, its FP32 islands, and its first loss scale."""

    precision: Precision = Precision.FP32
    islands: tuple[AnyIsland, ...] = ()
    scale: float = 65536.0


@dataclass(frozen=True)
class Failure:
    """The reason why a run ended early: a number that is not finite, or an exception."""

    step: int
    kind: Literal["forward", "gradient", "raised"]
    message: str
    culprit: Culprit | None = None


@dataclass
class TrainingRun:
    """The losses and loss scales of all steps, and the failure that ended the run, if any.

    ``faults`` are steps that were audited in 16 bits and were wrong.
    """

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    trace: Sequence[TraceStep] = ()
    failure: Failure | None = None
    faults: list[StepFault] = field(default_factory=list)

    def final_loss(self) -> float:
        """Return the mean over the last fifth of the steps; NaN if the run failed."""
        return math.nan if self.failure is not None else final_loss(self.losses)


def train(
    workload: Workload,
    setting: RunSetting,
    steps: int,
    *,
    detail: Detail | None = None,
    diagnose: bool = False,
    audited: Collection[int] = (),
    advance: Advance | None = None,
) -> TrainingRun:
    """Train ``workload`` itself, not a copy; a failure ends the run and is part of the result.

    ``detail`` traces every step; ``diagnose`` finds the operation that returned the first NaN or Inf;
    the steps in ``audited`` are also run in 16 bits, to find operations that leave its range.
    """
    # A plan without a precision: only the islands are applied, and their names checked.
    modules = tuple(island for island in setting.islands if isinstance(island, Island))
    make_islands(workload.model, PrecisionPlan(islands=modules))
    lines = LineIslands(island for island in setting.islands if isinstance(island, LineIsland))
    workload.model.train()
    run, step = TrainingRun(), TrainingStep(workload, setting.precision, init_scale=setting.scale)
    tracing = Tracer(workload.model, detail=detail, keep=1_000_000) if detail else nullcontext()
    audit = HalfAudit(workload, setting.precision, setting.scale)
    with tracing as tracer, seeded(workload.seed), lines.active():
        for index, batch in enumerate(workload.take(steps)):
            if index in audited:
                with nullcontext() if tracer is None else tracer.paused():
                    run.faults += audit.find(batch, index)
            loss, failure = _train_on(step, batch, index)
            if tracer is not None:
                tracer.step()
            run.losses.append(loss)
            run.scales.append(step.scaler.get_scale())
            if failure is not None:
                if diagnose and failure.kind != "raised":
                    failure = replace(failure, culprit=_find_culprit(step, batch))
                run.failure = failure
                break
            if advance is not None:
                advance()
    run.trace = () if tracer is None else tracer.steps
    return run


def _train_on(step: TrainingStep, batch: Any, index: int) -> tuple[float, Failure | None]:
    """Train on one batch at the highest loss scale that fits; return the loss, and the failure or None."""
    start, loss_value = _StepStart(step.workload), math.nan
    while True:
        try:
            loss = step.forward(batch)
            loss_value = loss.item()
            if math.isfinite(loss_value):
                step.backward(loss)
        except HalfguardError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything
            return loss_value, Failure(index, "raised", describe_error(error))
        if not math.isfinite(loss_value):
            start.restore()
            return loss_value, Failure(index, "forward", f"the loss was {loss_value:g}")
        grads, scale = step.gradients(), step.scaler.get_scale()
        if not grads:
            raise UsageError(
                "No gradient reached the optimizer's parameters.",
                cure=(
                    "Check that the loss depends on the model that it receives. If the loss uses "
                    "another copy of the model, nothing is trained."
                ),
            )
        if all(bool(torch.isfinite(grad).all()) for grad in grads):
            break
        start.restore()
        if scale <= MIN_SCALE or not step.precision.needs_loss_scale:
            message = f"gradients not finite at scale {scale:g}"
            return loss_value, Failure(index, "gradient", message)
        step.scaler.update(scale / 2)
    if scale != 1.0:
        # Not by torch's scaler, which rejects the FP16 gradients of a model with half weights.
        for grad in grads:
            grad.mul_(1 / scale)
    step.clip()
    step.workload.optimizer.step()
    return loss_value, None


def _find_culprit(step: TrainingStep, batch: Any) -> Culprit | None:
    """Run a failed step once more and return the operation that made its first bad number."""
    scale = step.scaler.get_scale()
    return find_first_nonfinite(lambda: step.loss_of(batch) * scale, step.workload.model)


class _StepStart:
    """Buffers and random state before a step, to repeat the step exactly."""

    def __init__(self, workload: Workload) -> None:
        self.buffers = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
        self.random_state = capture_random_state()

    def restore(self) -> None:
        restore_random_state(self.random_state)
        with torch.no_grad():
            for buffer, saved in self.buffers:
                buffer.copy_(saved)
