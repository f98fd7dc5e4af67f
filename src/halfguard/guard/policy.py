"""The decision at every step: what was seen goes in, what to do comes out. No tensor, no clock, no I/O.

The same order of questions decides every step. Are the ranks still equal? Was the loss finite, and if not,
was the batch? Were the gradients? Is the loss, then the gradient norm, within its limits? The first "no" is
the cause. A cause and the configuration give the action, and only a streak of bad steps leads beyond
skipping. A batch is never bad by itself: masks of -inf and NaN for missing labels are common, and harmless
if the loss is finite.

An overflow of gradients while the scale can still fall is how a dynamic loss scale finds its level: it
is skipped (or retried) but neither counts towards the streak nor stops a run that asked to stop at the
first non-finite step.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from halfguard.guard.config import GuardConfig, Remedy, SpikeConfig
from halfguard.records import Action, Cause

SCALED = frozenset({"fp16-mixed", "fp16-weights"})  # precisions that have a loss scale
NONFINITE = frozenset({Cause.BAD_BATCH, Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW})


@dataclass(frozen=True)
class Limits:
    """What a step may at most have to be applied."""

    loss: float = math.inf
    grad_norm: float = math.inf


@dataclass(frozen=True)
class Signals:
    """What was seen of one step."""

    loss: float
    grad_norm: float
    grads_finite: bool
    scale: float
    limits: Limits = Limits()
    batch_ok: bool = True  # looked at only if the loss is not finite
    desync: bool = False  # ranks that must be equal are not
    majority: bool = True  # looked at only then: whether there is one to follow


@dataclass(frozen=True)
class State:
    """What the policy remembers from step to step; plain numbers, so that it can be saved."""

    streak: int = 0
    losses: tuple[float, ...] = ()  # of the last applied steps, for the limits
    grad_norms: tuple[float, ...] = ()
    rollbacks: int = 0
    remedies: int = 0  # how many of the ladder were begun
    trial: int = 0  # applied steps of the remedy on trial; 0 when none is


@dataclass(frozen=True)
class Decision:
    """What to do, and why."""

    action: Action
    cause: Cause | None = None
    remedy: Remedy | None = None  # of the ladder, to try after rolling back


def cause_of(seen: Signals) -> Cause | None:
    """The first thing that is wrong with a step, or None."""
    if seen.desync:
        return Cause.DESYNC  # whatever else is seen, some rank saw it with other weights
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
_LARGEST = 3.4028234663852886e38  # of float32, in which norms are taken


def limits(state: State, config: GuardConfig) -> Limits:
    """What the next step may at most have, from the configuration and the last applied steps."""
    grad_norm = _float32(config.skip.max_grad_norm or math.inf)
    if config.spike is None or len(state.losses) < config.spike.warm_up:
        return Limits(grad_norm=grad_norm)
    return Limits(
        loss=_upper(state.losses, config.spike),
        grad_norm=min(grad_norm, _upper(state.grad_norms, config.spike)),
    )


def _upper(values: tuple[float, ...], spike: SpikeConfig) -> float:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    # Steps that hardly differ have no deviation to speak of; a percent of the mean is still no spike.
    deviation = max(math.sqrt(variance), _LEAST_DEVIATION * abs(mean))
    return _float32(mean + spike.sigma * deviation)


def _float32(value: float) -> float:
    # The device compares in float32; with the same limit, host and device give the same answer.
    return value if math.isinf(value) else float(struct.unpack("f", struct.pack("f", value))[0])


def calibrating(seen: Signals, config: GuardConfig) -> bool:
    """Whether this is a dynamic loss scale finding its level, as it does in every healthy run."""
    can_fall = config.precision in SCALED and seen.scale > _float32(config.scale.floor)
    return can_fall and cause_of(seen) is Cause.GRADIENT_OVERFLOW


def decide(state: State, seen: Signals, config: GuardConfig) -> tuple[Decision, State]:
    """One step: the action with its cause, and what to remember."""
    cause = cause_of(seen)
    if cause is None:
        return Decision(Action.APPLY), _after_applied(state, seen, config)
    if cause is Cause.DESYNC:
        heals = config.desync is not None and config.desync.action == "resync" and seen.majority
        return _bad(state, cause, config) if heals else (Decision(Action.HALT, cause), state)
    routine = calibrating(seen, config)
    if cause in NONFINITE and config.skip.on_nonfinite == "raise" and not routine:
        return Decision(Action.HALT, cause), state
    if cause in NONFINITE and config.skip.on_nonfinite == "retry_fp32":
        return Decision(Action.RETRY, cause), state  # counted by what becomes of it
    if routine:
        return Decision(Action.SKIP, cause), state
    return _bad(state, cause, config)


def decide_retried(
    state: State, seen: Signals, cause: Cause, config: GuardConfig
) -> tuple[Decision, State]:
    """The same for a step that was repeated in FP32; ``cause`` is what was wrong in half."""
    if cause_of(seen) is None:
        # What FP32 can learn from was no bad batch, even if there are infinities in it.
        cause = Cause.FORWARD_OVERFLOW if cause is Cause.BAD_BATCH else cause
        return Decision(Action.RETRY, cause), _after_applied(state, seen, config)
    return _bad(state, cause_of(seen) or cause, config)


def _after_applied(state: State, seen: Signals, config: GuardConfig) -> State:
    state = replace(state, streak=0)
    if config.spike is not None:
        keep = config.spike.window - 1
        state = replace(
            state,
            losses=(*state.losses[-keep:], seen.loss),
            grad_norms=(*state.grad_norms[-keep:], seen.grad_norm),
        )
    if config.recovery is None or not state.trial:
        return state
    # A remedy that held for long enough is kept, and its trial is over.
    proved = state.trial >= config.recovery.trial_steps
    return replace(state, trial=0 if proved else state.trial + 1)


def remedies(config: GuardConfig) -> tuple[Remedy, ...]:
    """The remedies to try, in their order; FP16 weights cannot be run in FP32 by switching autocast off."""
    ladder = () if config.recovery is None else config.recovery.ladder
    return tuple(r for r in ladder if not (r == "fp32" and config.precision == "fp16-weights"))


def _bad(state: State, cause: Cause, config: GuardConfig) -> tuple[Decision, State]:
    state = replace(state, streak=state.streak + 1)
    if state.streak < config.skip.max_consecutive:
        return Decision(Action.SKIP, cause), state
    recovery = config.recovery
    if recovery is None:
        return Decision(Action.HALT, cause), state
    if state.rollbacks < recovery.max_rollbacks:
        after = State(rollbacks=state.rollbacks + 1)
        return Decision(Action.ROLL_BACK, cause), after
    ladder = remedies(config)
    if state.remedies < len(ladder):
        remedy = ladder[state.remedies]
        after = State(rollbacks=state.rollbacks, remedies=state.remedies + 1, trial=1)
        return Decision(Action.ROLL_BACK, cause, remedy), after
    return Decision(Action.HALT, cause), state
