"""The numbers of a run, for a tracker's own log function.

A tracker needs no adapter: ``wandb.log``, ``mlflow.log_metrics``, a Lightning logger's ``log_metrics`` and
``accelerator.log`` are all called as ``log(metrics, step)``. The numbers are those of the row that the guard
has read anyway, so logging never waits for the device. Rank 0 logs alone, because all ranks decide alike.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from halfguard.errors import UsageError
from halfguard.guard.policy import Decision, Signals
from halfguard.journal import StepCounter
from halfguard.records import Action, Cause, Summary, WatchRow

# Trackers declare their first argument as dict[str, Any], dict[str, float], dict[str, Tensor | float], ...
LogFunction = Callable[[Any, int], object]

logger = logging.getLogger("halfguard")

# Every call has all of these: loggers that write CSV need the same columns in every row.
METRICS: Mapping[str, str] = MappingProxyType(
    {
        "halfguard/step": "the step, counted from 0",
        "halfguard/loss": "loss of the step, or of its repetition in FP32 if it was retried",
        "halfguard/grad_norm": "gradient norm of the step, before clipping",
        "halfguard/scale": "loss scale of the step",
        "halfguard/applied": "1 if the step was applied, else 0",
        "halfguard/halted": "1 if the step stopped the run, else 0",
        "halfguard/applied_steps": "steps applied so far, including retried ones",
        "halfguard/retried_steps": "steps applied after a repetition in FP32",
        "halfguard/rolled_back_steps": "steps that triggered a rollback or were undone by one",
        "halfguard/scale_reductions": "number of times the loss scale decreased",
        "halfguard/skipped_steps": "steps skipped so far, from all causes",
        **{f"halfguard/skipped/{cause}": f"skipped because {cause.description}" for cause in Cause},
    }
)  # fmt: skip


# With ``watch``, every call has these as well: those of the last sampled step, NaN before the first.
WATCH_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "halfguard/watch/step": "the most recently sampled step",
        "halfguard/watch/forward_headroom": (
            "doublings until an output overflows, in the layer with the least headroom"
        ),
        "halfguard/watch/backward_headroom": (
            "doublings until a gradient overflows at the loss scale of the step"
        ),
        "halfguard/watch/vanishing": "estimated share of gradients that became 0, in the worst layer",
        "halfguard/watch/infinite": (
            "operations whose result overflowed the 16-bit format and may change the step"
        ),
        "halfguard/watch/lost_updates": "share of 16-bit weight updates that round to 0, in the worst layer",
        "halfguard/watch/next_overflow": (
            "predicted steps until the next overflow; NaN if no trend leads to one"
        ),
        "halfguard/watch/warnings": "warnings so far",
    }
)  # fmt: skip


class LastStep(NamedTuple):
    """The measurements of the step that was decided last."""

    step: int
    loss: float
    grad_norm: float
    scale: float


class MetricsLog:
    """Calls ``log(metrics, step)`` every ``every`` steps, and at each unusual step or change of the scale.

    An error of ``log`` is reported once and never reaches the training loop.
    """

    def __init__(self, log: LogFunction, every: int, *, watched: bool) -> None:
        # The numbers of sampled steps are in every call, from the first one on.
        self._watched = dict.fromkeys(WATCH_METRICS, math.nan) if watched else {}
        if watched:
            self._watched["halfguard/watch/warnings"] = 0.0
        self._has_news = False  # of a sampled step
        if not callable(log):
            raise UsageError(
                f"log must be a function log(metrics, step), not {type(log).__name__}.",
                cure="Pass the function itself, for example log=wandb.log or log=mlflow.log_metrics.",
            )
        if every < 1:
            raise UsageError(f"log_every must be at least 1, not {every}.")
        self._log = log
        self._every = every
        self._scale: float | None = None  # of the step before
        self._told = False

    def add_watched_step(self, row: WatchRow) -> None:
        """Log the numbers of a sampled step with the next step."""
        ahead = min((one.step for one in row.forecasts), default=None)
        told = self._watched["halfguard/watch/warnings"] + len(row.warnings)
        values = (
            row.step,
            row.forward,
            row.backward,
            row.vanishing,
            row.infinite,
            row.lost,
            math.nan if ahead is None else ahead - row.step,
            told,
        )
        self._watched = dict(zip(WATCH_METRICS, map(float, values), strict=True))
        self._has_news = True

    def add(self, decision: Decision, seen: Signals, step: int, counter: StepCounter) -> None:
        """Log a decided step if it is due; ``counter`` has the counts of the run, this step included."""
        rescaled = self._scale is not None and seen.scale != self._scale
        self._scale = seen.scale
        if step % self._every and decision.cause is None and not rescaled and not self._has_news:
            return
        self._has_news = False
        metrics = make_metrics(decision, seen, step, counter.summary()) | self._watched
        try:
            self._log(metrics, step)
        except Exception as error:  # whatever a tracker raises, training goes on
            if not self._told:
                logger.warning(
                    "step %d: the function passed as log raised %s: %s. Training continues, and "
                    "the function is called again at the next logged step. Further errors are not "
                    "reported.",
                    step,
                    type(error).__name__,
                    error,
                    exc_info=error,
                )
            self._told = True


def make_metrics(decision: Decision, seen: Signals, step: int, counts: Summary) -> dict[str, float]:
    """Return a step and the counts so far under the names of ``METRICS``."""
    by_cause = {f"skipped/{cause}": counts.skipped.get(cause, 0) for cause in Cause}
    values = {
        "step": step,
        "loss": seen.loss,
        "grad_norm": seen.grad_norm,
        "scale": seen.scale,
        "applied": decision.action in {Action.APPLY, Action.RETRY},
        "halted": decision.action is Action.HALT,
        "applied_steps": counts.applied,
        "retried_steps": counts.retried,
        "rolled_back_steps": counts.rollbacks,
        "scale_reductions": counts.scale_reductions,
        "skipped_steps": sum(counts.skipped.values()),
        **by_cause,
    }
    return {f"halfguard/{name}": float(value) for name, value in values.items()}
