"""The one truthful answer to "was this step applied, and if not, why?"

An outcome is made without waiting for the device; reading a field is what waits. A guard that knows the
answer already (torch's own optimizers without ``fused`` need it on the host anyway) has filled it in.
"""

from __future__ import annotations

from torch import Tensor

from halfguard.guard.agreement.desync import Divergence
from halfguard.guard.agreement.fault_report import Inquest, blamed
from halfguard.guard.gradients import Gradients
from halfguard.guard.policy import Decision, Limits, Signals, cause_of
from halfguard.guard.stepping.gate import read
from halfguard.records import Action, Cause


class StepOutcome:
    """What became of one call; true where a step was applied."""

    def __init__(
        self,
        row: Tensor | None = None,
        limits: Limits | None = None,
        gradients: Gradients | None = None,
    ) -> None:
        self._row = row
        self._limits = limits or Limits()
        self._gradients = gradients
        self._decision: Decision | None = None
        self._known_signals: Signals | None = None
        self._inquest: Inquest | None = None

    def settle(self, decision: Decision, seen: Signals) -> None:
        """Take the answer from the host, where it is known by now."""
        self._decision = decision
        self._known_signals = seen

    def explain(self, inquest: Inquest) -> None:
        """Take what all ranks have found out about an unusual step."""
        self._inquest = inquest

    @property
    def _signals(self) -> Signals | None:
        if self._known_signals is None and self._row is not None:
            self._known_signals = read(self._row.tolist(), self._limits)
        return self._known_signals

    @property
    def action(self) -> Action:
        """Apply, skip, retry in FP32 or roll back; accumulate where the step is still open."""
        if self._decision is not None:
            return self._decision.action
        if self._signals is None:
            return Action.ACCUMULATE
        return Action.APPLY if self.cause is None else Action.SKIP

    @property
    def cause(self) -> Cause | None:
        """Why it was not an ordinary step; None for one that was."""
        if self._decision is not None:
            return self._decision.cause
        return None if self._signals is None else cause_of(self._signals)

    @property
    def applied(self) -> bool:
        """Whether the weights were updated."""
        return self.action in {Action.APPLY, Action.RETRY}

    def __bool__(self) -> bool:
        return self.applied

    @property
    def loss(self) -> float:
        """The loss of the step, the mean of its micro-batches; NaN while the step is open."""
        return float("nan") if self._signals is None else self._signals.loss

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
        """Norms of the gradients by parameter, for whoever keeps the step."""
        assert self._gradients is not None  # noqa: S101 - there are some as soon as a step is complete
        return self._gradients

    @property
    def culprits(self) -> tuple[str, ...]:
        """Parameters to blame, worst first; empty for an ordinary step."""
        if self.cause is None or self._gradients is None:
            return ()
        if self._inquest is not None:
            return self._inquest.culprits
        return blamed(self._gradients)  # not judged yet: as far as this rank can see

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on which it went wrong, where there are several and that is known."""
        return () if self._inquest is None else self._inquest.ranks

    @property
    def divergence(self) -> Divergence | None:
        """Who holds other bits than the rest, if ranks that must be equal were found not to be."""
        return None if self._inquest is None else self._inquest.divergence

    def __repr__(self) -> str:
        why = f", cause={self.cause}" if self.cause is not None else ""
        return (
            f"StepOutcome({self.action}{why}, loss={self.loss:.4g}, grad_norm={self.grad_norm:.4g})"
        )
