"""Put faults into a training loop of any kind, and report what each of them costs.

A loop is anything that trains on batches: a function around a scaler, a guard, a framework. It is made from
``LoopParts`` anew for each fault, trains on some healthy batches, on the bad one, and on healthy ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.casebook.loops.faults import (
    FAULTS,
    Batch,
    Fault,
    InjectedError,
    LoopParts,
    batches_of,
)
from halfguard.errors import UsageError
from halfguard.numerics.finite import all_finite
from halfguard.step.random_state import seeded

STEPS, BAD_STEP = 12, 4


class Loop(Protocol):
    """A training loop. ``loss_scale`` is None for a loop without one."""

    def train(self, batches: Sequence[Batch]) -> None:
        """Train on the batches, one step per ``accumulate`` of them; the scheduler moves once per step."""

    def loss_scale(self) -> float | None:
        """Return the present loss scale."""


MakeLoop = Callable[[LoopParts], Loop]


@dataclass(frozen=True)
class FaultOutcome:
    """What one fault has cost a loop."""

    fault: Fault
    batches_lost: int  # healthy or repairable ones without an update
    refused_later: int  # healthy steps after the fault without an update
    gradients_left: bool  # those of the bad step are added to the next
    weights_poisoned: bool
    moments_poisoned: bool
    buffers_poisoned: bool
    scheduler_ahead: int  # scheduler steps without an update
    scale_wrong: bool  # the scale fell, and was not the cause
    error: str = ""

    @property
    def problems(self) -> list[str]:
        """Return what went wrong, in words."""
        found = {
            f"{self.batches_lost} batches lost": self.batches_lost,
            f"{self.refused_later} later steps refused": self.refused_later,
            "stale gradients": self.gradients_left,
            "weights poisoned": self.weights_poisoned,
            "moments poisoned": self.moments_poisoned,
            "buffers poisoned": self.buffers_poisoned,
            f"scheduler {self.scheduler_ahead} ahead": self.scheduler_ahead > 0,
            "scale lowered": self.scale_wrong,
            f"ended by {self.error}": self.error,
        }
        return [text for text, wrong in found.items() if wrong]

    def __str__(self) -> str:
        return f"{self.fault.name}: {', '.join(self.problems) or 'nothing lost'}"


def inject_faults(make: MakeLoop, faults: Iterable[Fault] = FAULTS) -> list[FaultOutcome]:
    """Train a new loop for each fault, and return what each has cost.

    ``make`` builds a loop from parts: their model, optimizer and scheduler, and ``initial_scale``, with which
    no healthy step overflows. An error before the bad step is the loop's own, and is raised.
    """
    chosen = list(faults)
    unknown = [fault for fault in chosen if fault not in FAULTS]
    if unknown:
        known = ", ".join(fault.name for fault in FAULTS)
        raise UsageError(
            f"{unknown[0]!r} is not one of FAULTS.",
            cure=f"Choose from them by name: {known}.",
        )
    return [_inject(make, fault) for fault in chosen]


def assert_survives_faults(make: MakeLoop, faults: Iterable[Fault] = FAULTS) -> None:
    """Fail unless the loop loses nothing to any of the faults.

    A loop with ``halfguard.Guard`` and ``skip: {on_nonfinite: retry_fp32}`` loses nothing.
    """
    bad = [outcome for outcome in inject_faults(make, faults) if outcome.problems]
    if bad:
        listed = "\n".join(f"  {outcome}  ({outcome.fault.description})" for outcome in bad)
        raise AssertionError(f"{len(bad)} faults did harm:\n{listed}")


def _inject(make: MakeLoop, fault: Fault) -> FaultOutcome:
    with seeded(0):
        parts = LoopParts(fault)
    loop = make(parts)
    applied = _record_updates(parts)
    batches = batches_of(fault, steps=STEPS, at=BAD_STEP)
    end = (BAD_STEP + fault.steps) * fault.accumulate
    before = loop.loss_scale()
    error = _train(loop, batches[:end])
    _require_healthy_steps(applied, error)
    fell = _is_less(loop.loss_scale(), before)
    error = _train(loop, batches[end:]) or error
    return _outcome(parts, applied, error, fell=fell)


def _train(loop: Loop, batches: Sequence[Batch]) -> Exception | None:
    """Train; return the error that ended it, unless it is the one that was put in."""
    try:
        loop.train(batches)
    except Exception as error:  # noqa: BLE001 - whatever ends a loop is an outcome
        return None if _is_injected(error) else error
    return None


def _require_healthy_steps(applied: set[int], error: Exception | None) -> None:
    """Raise if the steps before the bad one were not all applied: no fault has caused that."""
    healthy = len([step for step in applied if step < BAD_STEP])
    if healthy == BAD_STEP:
        return
    if error is not None:
        raise error
    raise UsageError(
        f"The loop applied {healthy} of the {BAD_STEP} healthy steps before the fault.",
        cure="Begin with the loss scale parts.initial_scale, and update once per parts.accumulate batches.",
    )


def _is_less(scale: float | None, before: float | None) -> bool:
    return scale is not None and before is not None and scale < before


def _is_injected(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, InjectedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _record_updates(parts: LoopParts) -> set[int]:
    """Return a set that will hold the steps at which the optimizer changed weights, and kept them finite."""
    applied: set[int] = set()
    before: list[Tensor] = []
    weights = list(parts.model.parameters())

    def remember(*_: Any) -> None:
        if parts.model.optimizer_raises:
            parts.model.optimizer_raises = False
            raise InjectedError("raised in optimizer.step()")
        before[:] = [weight.detach().clone() for weight in weights]

    def compare(*_: Any) -> None:
        pairs = zip(before, weights, strict=True)
        changed = not all(torch.equal(old, new) for old, new in pairs)
        if changed and not _is_bad(weights):
            applied.add(parts.model.current_step)

    parts.optimizer.register_step_pre_hook(remember)
    parts.optimizer.register_step_post_hook(compare)
    return applied


def _outcome(
    parts: LoopParts, applied: set[int], error: Exception | None, *, fell: bool
) -> FaultOutcome:
    fault, model = parts.fault, parts.model
    end = BAD_STEP + fault.steps
    later = STEPS - end - len([step for step in applied if step >= end])
    at_fault = 1 if fault.repairable and BAD_STEP not in applied else 0
    moments = [v for state in parts.optimizer.state.values() for v in state.values()]
    return FaultOutcome(
        fault,
        batches_lost=at_fault + later,
        refused_later=later,
        gradients_left=model.gradients_left,
        weights_poisoned=_is_bad(model.parameters()),
        moments_poisoned=_is_bad(moments),
        buffers_poisoned=_is_bad(model.buffers()),
        scheduler_ahead=parts.scheduler.last_epoch - len(applied),
        scale_wrong=fell and not fault.scaling,
        error="" if error is None else f"{type(error).__name__}: {error}",
    )


def _is_bad(values: Iterable[Any]) -> bool:
    return not all_finite(value for value in values if isinstance(value, Tensor))
