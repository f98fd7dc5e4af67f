"""A short training run that can be compared with another one: same seed, same batches, same updates.

In 16 bits a gradient overflow must not skip a batch, or the run would no longer be the FP32 one's twin: the
step is repeated at half the loss scale, from the same random state and the same buffers, until it fits. So
a run ends in one of two ways: it follows, or it fails at a step, for a reason that no loss scale cures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from halfguard.errors import HalfguardError, UsageError
from halfguard.precision.emulation import as_on_cuda
from halfguard.precision.modes import Precision
from halfguard.precision.plans import apply_plan
from halfguard.records.culprit import Culprit
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.records.trace import TraceStep
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.rows import Detail
from halfguard.tracing.tracer import Tracer
from halfguard.workload import Workload, final_loss, seeded
from halfguard.workload.user_error import told

FLOOR, CEILING = 1.0, 2.0**24
Advance = Callable[[], None]


@dataclass(frozen=True)
class Setting:
    """How a run computes: the precision, the islands in it, and the loss scale to begin with."""

    precision: Precision = Precision.FP32
    islands: tuple[str, ...] = ()
    scale: float = 65536.0


@dataclass(frozen=True)
class Failure:
    """Why a run ended early: what was not finite, or what was raised."""

    step: int
    kind: Literal["forward", "gradient", "raised"]
    message: str
    culprit: Culprit | None = None


@dataclass
class Run:
    """What came of it."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    trace: Sequence[TraceStep] = ()
    failure: Failure | None = None

    def final_loss(self) -> float:
        """The mean over the last fifth of the steps; NaN if the run failed."""
        return math.nan if self.failure is not None else final_loss(self.losses)


def train(
    workload: Workload,
    setting: Setting,
    steps: int,
    *,
    detail: Detail | None = None,
    diagnose: bool = False,
    advance: Advance | None = None,
) -> Run:
    """Train ``workload``, which is used up; a failure ends the run and is told in it.

    ``detail`` traces every step; ``diagnose`` finds the operation that made the first bad number.
    """
    # Nobody asked for a plan's precision here: the names are checked, and the islands made.
    islands = tuple(Island(module=name) for name in setting.islands)
    apply_plan(workload.model, PrecisionPlan(islands=islands))
    workload.model.train()
    run, scale = Run(), setting.scale if setting.precision.needs_loss_scale else 1.0
    with _Traced(workload, detail) as tracer, seeded(workload.seed):
        for index, batch in enumerate(workload.take(steps)):
            step = _Step(workload, setting, batch, scale)
            failure = step.run(index)
            if tracer is not None:
                tracer.step()
            run.losses.append(step.loss)
            run.scales.append(scale := step.scale)
            if failure is not None:
                culprit = step.diagnose() if diagnose and failure.kind != "raised" else None
                run.failure = Failure(index, failure.kind, failure.message, culprit)
                break
            if advance is not None:
                advance()
    run.trace = () if tracer is None else tracer.steps
    return run


class _Step:
    """One batch: forward, backward, and the update, at the highest scale that fits."""

    def __init__(self, workload: Workload, setting: Setting, batch: Any, scale: float) -> None:
        self.workload, self.setting, self.batch = workload, setting, batch
        self.scale, self.loss = scale, math.nan

    def run(self, index: int) -> Failure | None:
        optimizer = self.workload.optimizer
        before = _Before(self.workload)
        while True:
            optimizer.zero_grad(set_to_none=True)
            try:
                loss = self._forward()
                self.loss = loss.item()
                if math.isfinite(self.loss):
                    (loss * self.scale).backward()  # type: ignore[no-untyped-call]
            except HalfguardError:
                raise
            except Exception as error:  # noqa: BLE001 - the user's model may raise anything
                return Failure(index, "raised", told(error))
            if not math.isfinite(self.loss):
                before.restore()
                return Failure(index, "forward", f"the loss was {self.loss:g}")
            grads = [grad for p in _trained(self.workload) if (grad := p.grad) is not None]
            if not grads:
                raise UsageError(
                    "No gradient reached the optimizer's parameters.",
                    cure="Does the loss depend on the model that it is given? A loss that uses another "
                    "copy of the model trains nothing.",
                )
            if all(bool(torch.isfinite(grad).all()) for grad in grads):
                break
            before.restore()
            if self.scale <= FLOOR or not self.setting.precision.needs_loss_scale:
                return Failure(index, "gradient", f"gradients not finite at scale {self.scale:g}")
            self.scale /= 2
        if self.scale != 1.0:
            for grad in grads:
                grad.mul_(1 / self.scale)
        optimizer.step()
        return None

    def diagnose(self) -> Culprit | None:
        """The operation that broke this step, found by running it once more."""
        return find_first_nonfinite(lambda: self._forward() * self.scale, self.workload.model)

    def _forward(self) -> Tensor:
        with as_on_cuda(self.setting.precision, self.workload.device):
            return self.workload.loss_of(self.batch)


class _Before:
    """Buffers and random state before a step, so that it can be repeated as if for the first time."""

    def __init__(self, workload: Workload) -> None:
        self.buffers = [(buffer, buffer.clone()) for buffer in workload.model.buffers()]
        self.device = workload.device if workload.device.type == "cuda" else None
        self.rng = torch.get_rng_state()
        self.device_rng = torch.cuda.get_rng_state(self.device) if self.device else None

    def restore(self) -> None:
        torch.set_rng_state(self.rng)
        if self.device and self.device_rng is not None:
            torch.cuda.set_rng_state(self.device_rng, self.device)
        with torch.no_grad():
            for buffer, saved in self.buffers:
                buffer.copy_(saved)


def _trained(workload: Workload) -> Iterator[Tensor]:
    return (p for group in workload.optimizer.param_groups for p in group["params"])


@contextmanager
def _Traced(workload: Workload, detail: Detail | None) -> Iterator[Tracer | None]:  # noqa: N802
    if detail is None:
        yield None
        return
    with Tracer(workload.model, detail=detail, keep=1_000_000) as tracer:
        yield tracer
