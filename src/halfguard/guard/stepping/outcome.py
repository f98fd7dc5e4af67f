"""The result of a step: was it applied, and if not, why?

An outcome is made without waiting for the device; reading a field may wait. If the guard already knows the
answer (optimizers that are not fused need it on the host anyway), nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from halfguard.guard.consensus import Gradients
from halfguard.guard.desync import Divergence
from halfguard.guard.fault_report import FaultReport, worst_parameters
from halfguard.guard.policy import Decision, Signals, StepLimits, find_cause
from halfguard.guard.stepping.gate import read_signals
from halfguard.records import Action, Cause


class StepOutcome:
    """The result of one call. In a boolean context, it is True if a step was applied."""

    def __init__(
        self,
        row: Tensor | None = None,
        limits: StepLimits | None = None,
        gradients: Gradients | None = None,
        batch_ok: Callable[[], bool] | None = None,
        *,
        micro_loss: Tensor | None = None,
    ) -> None:
        self._row = row
        self._limits = limits or StepLimits()
        self._gradients = gradients
        self._batch_ok = batch_ok  # reads the batch: asked only if the loss is not finite
        self._micro_loss = micro_loss  # of a step that is still open
        self._decision: Decision | None = None
        self._known_signals: Signals | None = None
        self.fault_report: FaultReport | None = None  # the findings of all ranks about a bad step

    def set_decision(self, decision: Decision, seen: Signals) -> None:
        """Set the decision of the policy."""
        self._decision = decision
        self._known_signals = seen
        self._batch_ok = None  # it holds the batch

    @property
    def _signals(self) -> Signals | None:
        if self._known_signals is None and self._row is not None:
            seen = read_signals(self._row.tolist(), self._limits)
            if self._batch_ok is not None and find_cause(seen) is Cause.FORWARD_OVERFLOW:
                seen = replace(seen, batch_ok=self._batch_ok())
            self._known_signals = seen
        return self._known_signals

    @property
    def action(self) -> Action:
        """What the guard did with the step; ``accumulate`` while the step is incomplete."""
        if self._decision is not None:
            return self._decision.action
        if self._signals is None:
            return Action.ACCUMULATE
        return Action.APPLY if self.cause is None else Action.SKIP

    @property
    def cause(self) -> Cause | None:
        """Why the step was not applied as usual; None for a normal step.

        With several ranks, this is the cause as seen by this rank until all ranks have decided. For example,
        a corrupt batch of another rank is an overflow on this rank.
        """
        if self._decision is not None:
            return self._decision.cause
        return None if self._signals is None else find_cause(self._signals)

    @property
    def applied(self) -> bool:
        """True if the weights were updated."""
        return self.action in {Action.APPLY, Action.RETRY}

    def __bool__(self) -> bool:
        return self.applied

    @property
    def loss(self) -> float:
        """The mean loss of the micro-batches; while the step is incomplete, the loss of the last one."""
        if self._signals is not None:
            return self._signals.loss
        return float("nan") if self._micro_loss is None else self._micro_loss.item()

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients, after unscaling and before clipping."""
        return float("nan") if self._signals is None else self._signals.grad_norm

    @property
    def scale(self) -> float:
        """The loss scale of the step."""
        return float("nan") if self._signals is None else self._signals.scale

    @property
    def gradients(self) -> Gradients:
        """The gradient norms by parameter."""
        assert self._gradients is not None  # noqa: S101 - there are some as soon as a step is complete
        return self._gradients

    @property
    def culprits(self) -> tuple[str, ...]:
        """The parameters whose gradients are non-finite or largest, worst first; empty for a normal step."""
        if self.cause is None or self._gradients is None:
            return ()
        if self.fault_report is not None:
            return self.fault_report.culprits
        return worst_parameters(self._gradients)  # not decided yet: as this rank sees it

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on which the fault began, if there are several ranks and these are known."""
        return () if self.fault_report is None else self.fault_report.ranks

    @property
    def divergence(self) -> Divergence | None:
        """The ranks whose weights differ, if a comparison found a difference."""
        return None if self.fault_report is None else self.fault_report.divergence

    def __repr__(self) -> str:
        why = f", cause={self.cause}" if self.cause is not None else ""
        return (
            f"StepOutcome({self.action}{why}, loss={self.loss:.4g}, grad_norm={self.grad_norm:.4g})"
        )
