"""The policy: a pure function from the measurements of a step to a decision. No tensor, no clock, no I/O.

Every step is decided by the same questions in the same order. Are the ranks still equal? Was the loss
finite, and if not, were the weights and the batch? Were the gradients? Is the loss, then the gradient norm,
within its limits? The first "no" is the cause. Cause and configuration give the action; only a streak of bad
steps leads to more than skipping. A batch alone is never bad: masks of -inf and NaN for missing labels are
common, and harmless if the loss is finite.

A gradient overflow while the scale can still fall is how a dynamic loss scale finds its level. Such a step is
skipped (or retried), but it does not count towards the streak, and it does not stop a run that asked to stop
at the first non-finite step. NaN gradients that no scale cures are told apart by ``NanGradients``; limits
that follow the run are in ``spikes``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from halfguard.formats import FP32
from halfguard.guard.config import GuardConfig, Remedy
from halfguard.guard.spikes import ACCEPT_AFTER, SpikeMemory, as_float32
from halfguard.precision_names import Precision
from halfguard.records import Action, Cause

# NaN gradients that no loss scale cures: told apart from an overflow, so that the scale is kept.
#
# A scaled gradient that leaves the range of half becomes infinite. Further back it often becomes NaN
# (inf - inf, 0 * inf), so NaN gradients at a finite loss do not show by themselves whether the scale is the
# cause. Lowering the scale is the experiment: at a scale of at most 1 nothing is enlarged, so gradients that
# are NaN there are NaN at every scale. They come from an operation, such as the square root of 0.
#
# The law has three parts:
#
# 1. If gradients were NaN at one scale after the other, down to one of at most 1, and another step is then
#    applied, the scale returns to its value before the first of them. A step was applied with that value.
# 2. From then on, NaN gradients do not lower the scale, and count as bad steps.
# 3. This ends after ``patience`` applied steps. It ends earlier if ``limit`` steps in a row have NaN
#    gradients, or one has gradients that are infinite but not NaN: the scale may be too large by now, and
#    falls as usual.
#
# NaN gradients never lower a scale of at most 1; infinite ones do, down to the floor.
#
# The state is plain numbers and depends on the steps alone, so all ranks reach the same answer.

NEUTRAL = 1.0  # a loss scale that enlarges nothing


@dataclass(frozen=True)
class NanGradients:
    """The steps with NaN gradients since ``trusted``, the scale of the last step applied before them."""

    trusted: float = 0.0  # 0 if no step was applied
    in_a_row: int = 0  # steps with NaN gradients since the last applied step
    age: int = 0  # applied steps since the last NaN, or since the proof
    proved: bool = False  # NaN at every scale

    @property
    def found(self) -> bool:
        """True if there were NaN gradients since the trusted step."""
        return self.in_a_row > 0 or self.age > 0

    def after_applied(self, scale: float, patience: int) -> tuple[NanGradients, float | None]:
        """Return the state after an applied step, and the scale to return to, if any."""
        if not self.found and scale == self.trusted:
            return self, None
        if not self.found or scale > self.trusted or self.age >= patience:
            return NanGradients(scale), None
        to = self.trusted if self.proved and scale < self.trusted else None
        return replace(self, in_a_row=0, age=self.age + 1), to

    def after_nan(self, scale: float, limit: int) -> tuple[NanGradients, float | None]:
        """Return the state after NaN gradients, and the scale to keep if it is not the cause."""
        keep = scale if scale <= NEUTRAL else None  # NaN at a scale that enlarges nothing
        if self.in_a_row >= limit:
            return NanGradients(in_a_row=self.in_a_row + 1), keep
        if self.proved:
            # At a scale of 1 it waits for an applied step; above the trusted one it may be the cause.
            keep = self.trusted if NEUTRAL < scale <= self.trusted else keep
            return replace(self, in_a_row=self.in_a_row + 1), keep
        proved = scale <= NEUTRAL < self.trusted
        return replace(self, in_a_row=self.in_a_row + 1, age=0, proved=proved), keep


NONFINITE = frozenset(
    {Cause.BAD_WEIGHTS, Cause.BAD_BATCH, Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW}
)
SPIKES = frozenset({Cause.LOSS_SPIKE, Cause.GRADIENT_SPIKE})


@dataclass(frozen=True)
class StepLimits:
    """Upper limits on loss and gradient norm; a step above either is refused."""

    loss: float = math.inf
    grad_norm: float = math.inf


@dataclass(frozen=True)
class Signals:
    """The measurements of one step."""

    loss: float
    grad_norm: float
    grads_finite: bool
    scale: float
    limits: StepLimits = StepLimits()
    weights_ok: bool = True  # checked only if the loss or a gradient is not finite
    batch_ok: bool = True  # checked only if the loss is not finite
    desync: bool = False  # ranks that must be equal are not
    statistics_finite: bool = True  # running statistics of normalization layers, after the step
    alarm: bool = False  # an audit found a fault, on any rank


@dataclass(frozen=True)
class PolicyState:
    """The memory of the policy from step to step: plain numbers, so that it can be saved."""

    streak: int = 0
    rollbacks: int = 0
    remedies: int = 0  # how many remedies of the ladder were started
    spikes: SpikeMemory = field(default_factory=SpikeMemory)
    nan: NanGradients = field(default_factory=NanGradients)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> PolicyState:
        """Return the state from ``dataclasses.asdict``, also after JSON has made its tuples lists."""
        plain = dict(values)
        spikes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in plain.pop("spikes").items()
        }
        nan = NanGradients(**plain.pop("nan"))
        return cls(**plain, spikes=SpikeMemory(**spikes), nan=nan)


@dataclass(frozen=True)
class Decision:
    """An action with its cause."""

    action: Action
    cause: Cause | None = None
    remedy: Remedy | None = None  # of the ladder, to try after rolling back
    failed_in_fp32: bool = field(default=False, compare=False)  # it was repeated, in vain
    scale: float | None = field(default=None, compare=False)  # to set, since it is not the cause
    routine: bool = field(default=False, compare=False)  # the loss scale finds its level
    note: str = field(default="", compare=False)  # a change of the policy, to tell the user


Decided = tuple[Decision, PolicyState]


def find_cause(seen: Signals) -> Cause | None:
    """Return the first thing that is wrong with a step, or None."""
    if seen.desync:
        return Cause.DESYNC  # all other measurements were made with different weights
    finite_loss = math.isfinite(seen.loss)
    finite_gradients = seen.grads_finite and not math.isnan(seen.scale)
    if not seen.weights_ok and not (finite_loss and finite_gradients):
        return Cause.BAD_WEIGHTS
    if not finite_loss:
        return Cause.FORWARD_OVERFLOW if seen.batch_ok else Cause.BAD_BATCH
    if not finite_gradients:
        return Cause.GRADIENT_OVERFLOW
    if seen.loss > seen.limits.loss:
        return Cause.LOSS_SPIKE
    # A norm can be infinite though every gradient is finite: its squares overflow.
    if not seen.grad_norm <= min(seen.limits.grad_norm, _LARGEST):
        return Cause.GRADIENT_SPIKE
    return None


_LARGEST = FP32.largest  # norms are computed in float32


def next_limits(state: PolicyState, config: GuardConfig) -> StepLimits:
    """Return the limits for the next step, from the configuration and the last applied steps."""
    fixed = as_float32(config.skip.max_grad_norm or math.inf)
    if config.spike is None:
        return StepLimits(grad_norm=fixed)
    loss, grad_norm = state.spikes.limits(config.spike)
    return StepLimits(loss=loss, grad_norm=min(fixed, grad_norm))


def is_nan_unscaled(seen: Signals) -> bool:
    """Return whether gradients are NaN at a scale that enlarges nothing; no scale is the cause."""
    return math.isnan(seen.grad_norm) and seen.scale <= NEUTRAL


def can_help(seen: Signals, config: GuardConfig) -> bool:
    """Return whether a lower loss scale may prevent a gradient overflow.

    The gradients of a summed loss can be infinite at a scale of 1. Gradients that are NaN at a scale that
    enlarges nothing have another cause.
    """
    if not Precision(config.precision).needs_loss_scale:
        return False
    return seen.scale > as_float32(config.scale.floor) and not is_nan_unscaled(seen)


def decide(state: PolicyState, seen: Signals, config: GuardConfig) -> Decided:
    """Decide one step; return the decision and the new state."""
    cause = find_cause(seen)
    if cause is None:
        nan, scale = state.nan.after_applied(seen.scale, config.scale.growth_interval)
        state = state if nan is state.nan else replace(state, nan=nan)
        return Decision(Action.APPLY, scale=scale), _after_applied(state, seen, config)
    if cause is Cause.DESYNC:
        return Decision(Action.HALT, cause), state
    # A dynamic loss scale finds its level, as in every healthy run.
    routine = cause is Cause.GRADIENT_OVERFLOW and can_help(seen, config)
    if cause in NONFINITE and config.skip.on_nonfinite == "retry_fp32":
        # Counted after the retry, by its result, which also tells whether the scale is the cause.
        return Decision(Action.RETRY, cause, routine=routine), state
    keep = None
    if cause is Cause.GRADIENT_OVERFLOW:
        nan, keep = _after_overflow(state.nan, seen, config)
        state, routine = replace(state, nan=nan), routine and keep is None
    elif cause is Cause.BAD_WEIGHTS and math.isfinite(seen.loss):
        keep = seen.scale  # the device saw an overflow, and has lowered it
    if cause in NONFINITE and config.skip.on_nonfinite == "raise" and not routine:
        return Decision(Action.HALT, cause), state
    if routine:
        return Decision(Action.SKIP, cause, routine=True), state
    if cause in SPIKES:
        return _spike(state, seen, cause, config)
    decision, state = _bad(state, cause, config)
    return replace(decision, scale=keep), state


def _after_overflow(
    nan: NanGradients, seen: Signals, config: GuardConfig
) -> tuple[NanGradients, float | None]:
    if not math.isnan(seen.grad_norm):
        return NanGradients(), None  # infinite only: the scale may be the cause
    return nan.after_nan(seen.scale, limit=max(1, config.skip.max_consecutive // 2))


def decide_retried(
    state: PolicyState, again: Signals, seen: Signals, config: GuardConfig
) -> Decided:
    """Decide a step that was repeated in FP32; ``seen`` is what was measured in half precision."""
    cause = find_cause(again)
    if cause is None:
        # Weights and a batch that give finite gradients in FP32 are not bad, even if they hold infinities.
        cause = find_cause(replace(seen, weights_ok=True, batch_ok=True))
        return Decision(Action.RETRY, cause), _after_applied(state, again, config)
    if cause in SPIKES:
        return _spike(state, again, cause, config)
    decision, state = _bad(state, cause, config)
    return replace(decision, failed_in_fp32=True), state


def without_repeat(config: GuardConfig) -> GuardConfig:
    """Return a configuration that skips what it would repeat in FP32."""
    skip = config.skip.model_copy(update={"on_nonfinite": "skip"})
    return config.model_copy(update={"skip": skip})


def _after_applied(state: PolicyState, seen: Signals, config: GuardConfig) -> PolicyState:
    state = replace(state, streak=0) if state.streak else state
    if config.spike is not None:
        spikes = state.spikes.after_applied(seen.loss, seen.grad_norm, config.spike)
        state = replace(state, spikes=spikes)
    return state


def _spike(state: PolicyState, seen: Signals, cause: Cause, config: GuardConfig) -> Decided:
    """Refuse a spike, and remember it: spikes that last or recur are accepted from the next step on."""
    decision, after = _bad(state, cause, config)
    spike, fixed = config.spike, min(as_float32(config.skip.max_grad_norm or math.inf), _LARGEST)
    if spike is None or decision.action is not Action.SKIP or not seen.grad_norm <= fixed:
        return decision, after
    after = replace(after, spikes=state.spikes.after_refused(seen.loss, seen.grad_norm))
    # Spikes in a row may mean that the last update broke the weights: a rollback is tried first.
    in_a_row = config.recovery is not None and after.streak >= ACCEPT_AFTER
    accepted = None if in_a_row else after.spikes.accept(spike)
    if accepted is None:
        return decision, after
    after = replace(after, spikes=accepted)
    limits = next_limits(after, config)
    note = (
        f"{ACCEPT_AFTER} spikes reached the same level, which is accepted from now on: loss up to "
        f"{limits.loss:.4g}, gradient norm up to {limits.grad_norm:.4g}"
    )
    return replace(decision, note=note), after


def allowed_remedies(config: GuardConfig) -> tuple[Remedy, ...]:
    """Return the remedies to try, in order; ``fp32`` is none for FP16 weights, which stay half."""
    ladder = () if config.recovery is None else config.recovery.ladder
    return tuple(r for r in ladder if not (r == "fp32" and config.precision == "fp16-weights"))


def _bad(state: PolicyState, cause: Cause | None, config: GuardConfig) -> Decided:
    state = replace(state, streak=state.streak + 1)
    if state.streak < config.skip.max_consecutive:
        return Decision(Action.SKIP, cause), state
    recovery = config.recovery
    if recovery is None:
        return Decision(Action.HALT, cause), state
    if state.rollbacks < recovery.max_rollbacks:
        after = PolicyState(rollbacks=state.rollbacks + 1)
        return Decision(Action.ROLL_BACK, cause), after
    ladder = allowed_remedies(config)
    if state.remedies < len(ladder):
        remedy = ladder[state.remedies]
        after = PolicyState(rollbacks=state.rollbacks, remedies=state.remedies + 1)
        return Decision(Action.ROLL_BACK, cause, remedy), after
    return Decision(Action.HALT, cause), state
