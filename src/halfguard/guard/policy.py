"""The policy: a pure function from the measurements of a step to a decision. No tensor, no clock, no I/O.

Every step is decided by the same questions in the same order. Are the ranks still equal? Was the loss
finite, and if not, was the batch? Were the gradients? Is the loss, then the gradient norm, within its
limits? The first "no" is the cause. Cause and configuration give the action; only a streak of bad steps
leads to more than skipping. A batch alone is never bad: masks of -inf and NaN for missing labels are
common, and harmless if the loss is finite.

A gradient overflow while the scale can still fall is how a dynamic loss scale finds its level. Such a step is
skipped (or retried), but it does not count towards the streak, and it does not stop a run that asked to stop
at the first non-finite step.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from halfguard.formats import FP32
from halfguard.guard.config import GuardConfig, Remedy, SpikeConfig
from halfguard.precision_names import Precision
from halfguard.records import Action, Cause

NONFINITE = frozenset({Cause.BAD_BATCH, Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW})


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
    batch_ok: bool = True  # checked only if the loss is not finite
    desync: bool = False  # ranks that must be equal are not
    majority: bool = True  # checked only then: a majority of ranks agrees
    statistics_finite: bool = True  # running statistics of normalization layers, after the step


@dataclass(frozen=True)
class PolicyState:
    """The memory of the policy from step to step: plain numbers, so that it can be saved."""

    streak: int = 0
    losses: tuple[float, ...] = ()  # of the last applied steps, for the limits
    grad_norms: tuple[float, ...] = ()
    rollbacks: int = 0
    remedies: int = 0  # how many remedies of the ladder were started
    trial: int = 0  # applied steps of the remedy on trial; 0 when none is


@dataclass(frozen=True)
class Decision:
    """An action with its cause."""

    action: Action
    cause: Cause | None = None
    remedy: Remedy | None = None  # of the ladder, to try after rolling back


def find_cause(seen: Signals) -> Cause | None:
    """Return the first thing that is wrong with a step, or None."""
    if seen.desync:
        return Cause.DESYNC  # all other measurements were made with different weights
    if not math.isfinite(seen.loss):
        return Cause.FORWARD_OVERFLOW if seen.batch_ok else Cause.BAD_BATCH
    if not seen.grads_finite or math.isnan(seen.scale):
        return Cause.GRADIENT_OVERFLOW
    if seen.loss > seen.limits.loss:
        return Cause.LOSS_SPIKE
    # A norm can be infinite though every gradient is finite: its squares overflow.
    if not seen.grad_norm <= min(seen.limits.grad_norm, _LARGEST):
        return Cause.GRADIENT_SPIKE
    return None


_LEAST_DEVIATION = 0.01
_LARGEST = FP32.largest  # norms are computed in float32


def next_limits(state: PolicyState, config: GuardConfig) -> StepLimits:
    """Return the limits for the next step, from the configuration and the last applied steps."""
    grad_norm = _float32(config.skip.max_grad_norm or math.inf)
    if config.spike is None or len(state.losses) < config.spike.warm_up:
        return StepLimits(grad_norm=grad_norm)
    return StepLimits(
        loss=_upper(state.losses, config.spike),
        grad_norm=min(grad_norm, _upper(state.grad_norms, config.spike)),
    )


def _upper(values: tuple[float, ...], spike: SpikeConfig) -> float:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    # Steps that hardly differ have almost no deviation; a change of 1% of the mean is still no spike.
    deviation = max(math.sqrt(variance), _LEAST_DEVIATION * abs(mean))
    return _float32(mean + spike.sigma * deviation)


def _float32(value: float) -> float:
    # The device compares in float32; with the same limit, host and device give the same answer.
    return value if math.isinf(value) else float(struct.unpack("f", struct.pack("f", value))[0])


def is_scale_calibration(seen: Signals, config: GuardConfig) -> bool:
    """Return whether this is a dynamic loss scale finding its level, as in every healthy run."""
    can_fall = Precision(config.precision).needs_loss_scale and seen.scale > _float32(
        config.scale.floor
    )
    return can_fall and find_cause(seen) is Cause.GRADIENT_OVERFLOW


def decide(state: PolicyState, seen: Signals, config: GuardConfig) -> tuple[Decision, PolicyState]:
    """Decide one step; return the decision and the new state."""
    cause = find_cause(seen)
    if cause is None:
        return Decision(Action.APPLY), _after_applied(state, seen, config)
    if cause is Cause.DESYNC:
        heals = config.desync is not None and config.desync.action == "resync" and seen.majority
        return _bad(state, cause, config) if heals else (Decision(Action.HALT, cause), state)
    routine = is_scale_calibration(seen, config)
    if cause in NONFINITE and config.skip.on_nonfinite == "raise" and not routine:
        return Decision(Action.HALT, cause), state
    if cause in NONFINITE and config.skip.on_nonfinite == "retry_fp32":
        return Decision(Action.RETRY, cause), state  # counted after the retry, by its result
    if routine:
        return Decision(Action.SKIP, cause), state
    return _bad(state, cause, config)


def decide_retried(
    state: PolicyState, seen: Signals, cause: Cause, config: GuardConfig
) -> tuple[Decision, PolicyState]:
    """Decide a step that was repeated in FP32; ``cause`` is what was wrong in half precision."""
    if find_cause(seen) is None:
        # A batch that gives finite gradients in FP32 is not bad, even if it holds infinities.
        cause = Cause.FORWARD_OVERFLOW if cause is Cause.BAD_BATCH else cause
        return Decision(Action.RETRY, cause), _after_applied(state, seen, config)
    return _bad(state, find_cause(seen) or cause, config)


def _after_applied(state: PolicyState, seen: Signals, config: GuardConfig) -> PolicyState:
    state = replace(state, streak=0) if state.streak else state
    if config.spike is not None:
        keep = config.spike.window - 1
        state = replace(
            state,
            losses=(*state.losses[-keep:], seen.loss),
            grad_norms=(*state.grad_norms[-keep:], seen.grad_norm),
        )
    if config.recovery is None or not state.trial:
        return state
    # A remedy that worked for long enough is kept, and its trial ends.
    proved = state.trial >= config.recovery.trial_steps
    return replace(state, trial=0 if proved else state.trial + 1)


def allowed_remedies(config: GuardConfig) -> tuple[Remedy, ...]:
    """Return the remedies to try, in order; ``fp32`` is none for FP16 weights, which stay half."""
    ladder = () if config.recovery is None else config.recovery.ladder
    return tuple(r for r in ladder if not (r == "fp32" and config.precision == "fp16-weights"))


def _bad(state: PolicyState, cause: Cause, config: GuardConfig) -> tuple[Decision, PolicyState]:
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
        after = PolicyState(rollbacks=state.rollbacks, remedies=state.remedies + 1, trial=1)
        return Decision(Action.ROLL_BACK, cause, remedy), after
    return Decision(Action.HALT, cause), state
