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
    """The result of one call; true if a step was applied."""

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
        """Apply, skip, retry in FP32 or roll back; accumulate while the step is open."""
        if self._decision is not None:
            return self._decision.action
        if self._signals is None:
            return Action.ACCUMULATE
        return Action.APPLY if self.cause is None else Action.SKIP

    @property
    def cause(self) -> Cause | None:
        """The cause of a step that was not ordinary; None otherwise.

        With several ranks, a step that is not decided yet has the cause that this rank sees: a bad batch of
        another rank is an overflow here.
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
        """The loss of the step, the mean of its micro-batches; while it is open, that of the last one."""
        if self._signals is not None:
            return self._signals.loss
        return float("nan") if self._micro_loss is None else self._micro_loss.item()

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients, unscaled and before clipping."""
        return float("nan") if self._signals is None else self._signals.grad_norm

    @property
    def scale(self) -> float:
        """The loss scale that the step was taken with."""
        return float("nan") if self._signals is None else self._signals.scale

    @property
    def gradients(self) -> Gradients:
        """Norms of the gradients by parameter."""
        assert self._gradients is not None  # noqa: S101 - there are some as soon as a step is complete
        return self._gradients

    @property
    def culprits(self) -> tuple[str, ...]:
        """Parameters with the worst gradients, worst first; empty for an ordinary step."""
        if self.cause is None or self._gradients is None:
            return ()
        if self.fault_report is not None:
            return self.fault_report.culprits
        return worst_parameters(self._gradients)  # not decided yet: as this rank sees it

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on which the fault arose, if there are several and they are known."""
        return () if self.fault_report is None else self.fault_report.ranks

    @property
    def divergence(self) -> Divergence | None:
        """The ranks that hold different bits, if ranks that must be equal were found to differ."""
        return None if self.fault_report is None else self.fault_report.divergence

    def __repr__(self) -> str:
        why = f", cause={self.cause}" if self.cause is not None else ""
        return (
            f"StepOutcome({self.action}{why}, loss={self.loss:.4g}, grad_norm={self.grad_norm:.4g})"
        )
