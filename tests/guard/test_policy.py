"""The policy is pure, so it is tested over arbitrary runs of arbitrary numbers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfguard.guard import policy
from halfguard.guard.config import GuardConfig, Remedy
from halfguard.guard.policy import Decision, PolicyState, Signals, StepLimits
from halfguard.guard.spikes import SpikeMemory
from halfguard.records import Action, Cause
from tests.support.cases import each

HEALTHY = Signals(loss=1.0, grad_norm=1.0, grads_finite=True, scale=65536.0)
AT_FLOOR = replace(HEALTHY, scale=GuardConfig().scale.floor)
BAD = {
    Cause.BAD_WEIGHTS: replace(HEALTHY, loss=math.nan, weights_ok=False),
    Cause.BAD_BATCH: replace(HEALTHY, loss=math.nan, batch_ok=False),
    Cause.FORWARD_OVERFLOW: replace(HEALTHY, loss=math.nan),
    Cause.GRADIENT_OVERFLOW: replace(AT_FLOOR, grad_norm=math.inf, grads_finite=False),
    Cause.LOSS_SPIKE: replace(HEALTHY, limits=StepLimits(loss=0.5)),
    Cause.GRADIENT_SPIKE: replace(HEALTHY, limits=StepLimits(grad_norm=0.5)),
}
CALIBRATING = replace(HEALTHY, grad_norm=math.inf, grads_finite=False)
NONFINITE = [Cause.BAD_WEIGHTS, Cause.BAD_BATCH, Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW]
SPIKES = [Cause.LOSS_SPIKE, Cause.GRADIENT_SPIKE]


def config(**values: Any) -> GuardConfig:
    return GuardConfig.load(values)


def run(
    steps: list[Signals], settings_: GuardConfig, state: PolicyState | None = None
) -> tuple[list[Decision], PolicyState]:
    state = state or PolicyState()
    decisions = []
    for seen in steps:
        decision, state = policy.decide(state, seen, settings_)
        decisions.append(decision)
    return decisions, state


def window(losses: tuple[float, ...], grad_norms: tuple[float, ...]) -> PolicyState:
    return PolicyState(spikes=SpikeMemory(losses, grad_norms))


# -- ranks that differ


def test_a_desync_comes_before_everything_else_and_halts() -> None:
    for seen in (HEALTHY, *BAD.values()):
        [decision], _ = run([replace(seen, desync=True)], config())
        assert decision == Decision(Action.HALT, Cause.DESYNC)


# -- the cause


@each(
    ("seen", "cause"),
    [
        (HEALTHY, None),
        (replace(HEALTHY, batch_ok=False), None),  # infinities in a batch may be meant
        *((seen, cause) for cause, seen in BAD.items()),
        *((replace(HEALTHY, loss=bad), Cause.FORWARD_OVERFLOW) for bad in (math.inf, -math.inf)),
        # A norm may overflow though the gradients are finite.
        *((replace(HEALTHY, grad_norm=bad), Cause.GRADIENT_SPIKE) for bad in (math.inf, math.nan)),
    ],
)
def test_each_cause_is_named(seen: Signals, cause: Cause | None) -> None:
    assert policy.find_cause(seen) is cause


def test_the_first_thing_that_is_wrong_is_the_cause() -> None:
    limits = StepLimits(0.5, 0.5)
    seen = Signals(math.nan, math.nan, False, 1.0, limits, weights_ok=False, batch_ok=False)
    order = [policy.find_cause(seen)]
    cures: list[dict[str, Any]] = [
        {"weights_ok": True}, {"batch_ok": True}, {"loss": 1.0}, {"grads_finite": True, "grad_norm": 1.0},
        {"loss": 0.25}, {"grad_norm": 0.25},
    ]  # fmt: skip
    for cure in cures:
        seen = replace(seen, **cure)
        order.append(policy.find_cause(seen))
    assert order == [
        Cause.BAD_WEIGHTS, Cause.BAD_BATCH, Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW, Cause.LOSS_SPIKE,
        Cause.GRADIENT_SPIKE, None,
    ]  # fmt: skip


def test_a_limit_may_be_reached_but_not_passed() -> None:
    at = replace(HEALTHY, limits=StepLimits(loss=1.0, grad_norm=1.0))
    assert policy.find_cause(at) is None
    assert policy.find_cause(replace(at, loss=math.nextafter(1.0, 2.0))) is Cause.LOSS_SPIKE
    assert (
        policy.find_cause(replace(at, grad_norm=math.nextafter(1.0, 2.0))) is Cause.GRADIENT_SPIKE
    )


# -- the limits


def test_the_configured_norm_is_a_limit_as_the_device_sees_it() -> None:
    assert policy.next_limits(PolicyState(), config()) == StepLimits()
    found = policy.next_limits(PolicyState(), config(skip={"max_grad_norm": 0.1}))
    assert found == StepLimits(grad_norm=float(np.float32(0.1)))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=32, max_size=48))
def test_limits_of_a_window_are_mean_and_k_sigma(losses: list[float]) -> None:
    norms = [abs(loss) for loss in losses]
    state = window(tuple(losses), tuple(norms))
    found = policy.next_limits(state, config(spike={"sigma": 3.0}))
    for limit, values in ((found.loss, losses), (found.grad_norm, norms)):
        # The deviation of nearly equal steps counts as one percent: noise must not be a spike.
        deviation = max(np.std(values, ddof=1), 0.01 * abs(np.mean(values)))
        exact = np.mean(values) + 3.0 * deviation
        assert limit == pytest.approx(exact, rel=1e-6, abs=1e-6 * max(map(abs, values)) + 1e-30)
        assert limit == float(np.float32(limit)), "the device compares in float32"


@each("value", [1e38, 3.4028234663852886e38, 1e-45, -3.4028234663852886e38])
def test_limits_survive_extreme_windows(value: float) -> None:
    state = window((value, 0.0) * 16, (abs(value), 0.0) * 16)
    found = policy.next_limits(state, config(spike={"sigma": 100.0}))
    assert not math.isnan(found.loss)
    assert not math.isnan(found.grad_norm)


@patch.multiple("halfguard.guard.spikes", WINDOW=4, WARM_UP=3)
def test_limits_begin_after_the_warm_up_and_the_window_is_bounded() -> None:
    settings_ = config(spike={"sigma": 6.0})
    state = PolicyState()
    for count in range(1, 10):
        assert math.isinf(policy.next_limits(state, settings_).loss) == (count <= 3)
        _, state = policy.decide(state, replace(HEALTHY, loss=float(count)), settings_)
    assert state.spikes.losses == (6.0, 7.0, 8.0, 9.0)
    assert len(state.spikes.grad_norms) == 4


def test_the_smaller_of_both_norm_limits_holds() -> None:
    state = window((1.0,) * 32, (5.0,) * 32)
    assert policy.next_limits(state, config(spike={})).grad_norm == pytest.approx(5.0 * 1.06)
    assert policy.next_limits(state, config(spike={}, skip={"max_grad_norm": 2})).grad_norm == 2.0


def test_only_applied_steps_enter_the_window() -> None:
    settings_ = config(spike={})
    _, state = run([HEALTHY, *BAD.values(), CALIBRATING], settings_)
    assert state.spikes.losses == (1.0,)
    assert state.spikes.grad_norms == (1.0,)


# -- the action


@each("cause", BAD)
def test_skip_until_the_streak_is_too_long(cause: Cause) -> None:
    decisions, state = run([BAD[cause]] * 4, config(skip={"max_consecutive": 4}))
    assert decisions == [Decision(Action.SKIP, cause)] * 3 + [Decision(Action.HALT, cause)]
    assert state.streak == 4


def test_only_an_applied_step_ends_a_streak() -> None:
    _, state = run([BAD[Cause.BAD_BATCH]] * 3, config())
    assert state.streak == 3
    _, state = run([CALIBRATING], config(), state)  # a scale that finds its level
    assert state.streak == 3
    assert run([HEALTHY], config(), state)[1].streak == 0
    decisions, state = run([CALIBRATING] * 100, config(skip={"max_consecutive": 1}))
    assert {decision.action for decision in decisions} == {Action.SKIP}
    assert state.streak == 0


@each("floor", [1.0, 0.1, 1e-3, 3.0])
def test_at_the_floor_the_scale_is_not_to_blame(floor: float) -> None:
    # The scale is in float32, where the floor may be a little larger than here.
    seen = replace(CALIBRATING, scale=float(np.float32(floor)))
    _, state = run([seen], config(scale={"floor": floor}))
    assert state.streak == 1
    decisions, _ = run([seen], config(scale={"floor": floor}, skip={"on_nonfinite": "raise"}))
    assert decisions[0].action is Action.HALT


def test_infinite_gradients_at_a_scale_of_1_lower_it_and_nan_gradients_do_not() -> None:
    # The gradients of a summed loss may be infinite there; NaN is the fault of an operation.
    at_1 = replace(CALIBRATING, scale=1.0)
    assert run([at_1], config())[0][0].routine
    (decision,), state = run([replace(at_1, grad_norm=math.nan)], config())
    assert (decision.routine, decision.scale, state.streak) == (False, 1.0, 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_without_a_loss_scale_none_finds_its_level(precision: str) -> None:
    # Their scale is always 1, for any floor of the scale that they do not use.
    settings_ = config(precision=precision, scale={"floor": 0.5}, skip={"max_consecutive": 2})
    decisions, _ = run([replace(CALIBRATING, scale=1.0)] * 2, settings_)
    assert [decision.action for decision in decisions] == [Action.SKIP, Action.HALT]


@each(
    ("mode", "seen", "decision"),
    [
        *(("raise", BAD[cause], Decision(Action.HALT, cause)) for cause in NONFINITE),
        *((mode, BAD[cause], Decision(Action.SKIP, cause))
          for mode in ("raise", "retry_fp32") for cause in SPIKES),
        ("raise", CALIBRATING, Decision(Action.SKIP, Cause.GRADIENT_OVERFLOW)),
        *(("retry_fp32", seen, Decision(Action.RETRY, Cause.GRADIENT_OVERFLOW))
          for seen in (CALIBRATING, BAD[Cause.GRADIENT_OVERFLOW])),
    ],
)  # fmt: skip
def test_the_first_bad_step_is_answered_as_configured(
    mode: str, seen: Signals, decision: Decision
) -> None:
    assert run([seen], config(skip={"on_nonfinite": mode}))[0] == [decision]


def test_infinities_in_a_batch_that_fp32_learns_from_were_meant() -> None:
    """A mask of -inf and a forward overflow: the batch is retried, and not reported as bad."""
    settings_ = config(skip={"on_nonfinite": "retry_fp32"})
    decision, state = policy.decide(PolicyState(), BAD[Cause.BAD_BATCH], settings_)
    assert decision.action is Action.RETRY
    again = replace(HEALTHY, batch_ok=False)
    decision, _ = policy.decide_retried(state, again, BAD[Cause.BAD_BATCH], settings_)
    assert decision == Decision(Action.RETRY, Cause.FORWARD_OVERFLOW)


def test_a_retried_step_that_is_healthy_counts_as_applied() -> None:
    settings_ = config(skip={"on_nonfinite": "retry_fp32"}, spike={})
    seen = BAD[Cause.FORWARD_OVERFLOW]
    _, state = policy.decide(PolicyState(streak=3), seen, settings_)
    decision, state = policy.decide_retried(state, HEALTHY, seen, settings_)
    assert decision == Decision(Action.RETRY, Cause.FORWARD_OVERFLOW)
    assert state == window((1.0,), (1.0,))


@pytest.mark.parametrize("first", [CALIBRATING, BAD[Cause.FORWARD_OVERFLOW]])
def test_a_retried_step_that_is_bad_in_fp32_too_counts_towards_the_streak(first: Signals) -> None:
    # FP32 has no loss scale, so a step that is not finite there is not scale calibration.
    settings_ = config(skip={"on_nonfinite": "retry_fp32", "max_consecutive": 3})
    state, actions = PolicyState(), []
    for _ in range(3):
        decision, state = policy.decide(state, first, settings_)
        assert decision.action is Action.RETRY
        again = replace(HEALTHY, grad_norm=math.nan, grads_finite=False, scale=1.0)
        decision, state = policy.decide_retried(state, again, first, settings_)
        assert decision.failed_in_fp32
        actions.append(decision.action)
        assert decision.cause is Cause.GRADIENT_OVERFLOW
    assert actions == [Action.SKIP, Action.SKIP, Action.HALT]


def test_a_retried_step_names_what_was_wrong_in_fp32() -> None:
    settings_ = config(skip={"on_nonfinite": "retry_fp32", "max_grad_norm": 2.0})
    again = replace(HEALTHY, grad_norm=3.0, limits=policy.next_limits(PolicyState(), settings_))
    seen = BAD[Cause.FORWARD_OVERFLOW]
    decision, _ = policy.decide_retried(PolicyState(), again, seen, settings_)
    assert decision == Decision(Action.SKIP, Cause.GRADIENT_SPIKE)


def test_roll_back_then_the_ladder_in_order_then_halt() -> None:
    ladder: list[Remedy] = ["lower_lr", "fp32"]
    settings_ = config(skip={"max_consecutive": 2}, recovery={"max_rollbacks": 2, "ladder": ladder})
    decisions, state = run([BAD[Cause.FORWARD_OVERFLOW]] * 10, settings_)
    assert [d.action for d in decisions] == [Action.SKIP, Action.ROLL_BACK] * 4 + [
        Action.SKIP, Action.HALT,
    ]  # fmt: skip
    assert [d.remedy for d in decisions[1::2]] == [None, None, *ladder, None]
    assert (state.rollbacks, state.remedies) == (2, 2)


# -- over arbitrary runs

floats = st.floats(width=32)
signals = st.builds(
    Signals,
    loss=floats,
    grad_norm=st.one_of(st.floats(0, 100, width=32), floats.map(abs)),
    grads_finite=st.booleans(),
    weights_ok=st.sampled_from([True, True, True, False]),
    batch_ok=st.sampled_from([True, True, True, False]),
    scale=st.sampled_from([1.0, 2.0, 65536.0]),
    limits=st.sampled_from([StepLimits(), StepLimits(1.0, 1.0), StepLimits(1e30, 10.0)]),
)
configs = st.builds(
    lambda skip, spike, recovery: config(skip=skip, spike=spike, recovery=recovery),
    st.fixed_dictionaries(
        {
            "on_nonfinite": st.sampled_from(["skip", "retry_fp32", "raise"]),
            "max_consecutive": st.integers(1, 4),
        }
    ),
    st.none() | st.just({}),
    st.none()
    | st.fixed_dictionaries(
        {
            "max_rollbacks": st.integers(0, 3),
            "ladder": st.lists(st.sampled_from(["fp32", "lower_lr", "tighter_clip"]), max_size=3),
        }
    ),
)


@patch.multiple("halfguard.guard.spikes", WINDOW=6, WARM_UP=4)
@settings(max_examples=150)
@given(st.lists(st.tuples(signals, signals), max_size=40), configs)
def test_every_run_keeps_the_promises(
    steps: list[tuple[Signals, Signals]], settings_: GuardConfig
) -> None:
    state = PolicyState()
    rollbacks, remedies = 0, []
    for seen, again in steps:
        before = state
        decision, state = policy.decide(state, seen, settings_)
        cause = policy.find_cause(seen)
        assert decision.cause is cause
        assert (decision.action is Action.APPLY) == (cause is None), "never applied with a cause"
        if decision.action is Action.RETRY:
            assert settings_.skip.on_nonfinite == "retry_fp32"
            assert cause in NONFINITE
            decision, state = policy.decide_retried(state, again, seen, settings_)
            assert (decision.action is Action.RETRY) == (policy.find_cause(again) is None)
            assert decision.action is not Action.APPLY
        if decision.action in {Action.APPLY, Action.RETRY}:
            assert state.streak == 0
        if decision.action is Action.SKIP:
            assert before.streak <= state.streak <= before.streak + 1
            assert state.streak < settings_.skip.max_consecutive
        if decision.action is Action.ROLL_BACK:
            assert state.streak == 0
            assert state.spikes.losses == ()
            rollbacks += 1
            remedies += [decision.remedy] if decision.remedy else []
        assert len(state.spikes.losses) == len(state.spikes.grad_norms)
        assert len(state.spikes.losses) <= (6 if settings_.spike else 0)
        assert all(map(math.isfinite, state.spikes.losses + state.spikes.grad_norms))
        if decision.action is Action.HALT:
            break
    recovery = settings_.recovery
    ladder = () if recovery is None else recovery.ladder
    assert tuple(remedies) == ladder[: len(remedies)]
    assert rollbacks <= (0 if recovery is None else recovery.max_rollbacks + len(ladder))
    assert PolicyState.load(json.loads(json.dumps(asdict(state), allow_nan=False))) == state


@patch.multiple("halfguard.guard.spikes", WINDOW=6, WARM_UP=4)
@given(st.lists(signals, max_size=20), configs)
def test_a_run_without_healthy_steps_ends(steps: list[Signals], settings_: GuardConfig) -> None:
    """The number of steps until a halt is bounded."""
    skip, recovery = settings_.skip, settings_.recovery
    ways_out = 1 if recovery is None else 1 + recovery.max_rollbacks + len(recovery.ladder)
    _, state = run(steps, settings_)
    bad = BAD[Cause.GRADIENT_SPIKE]  # neither retried nor scale calibration
    decisions, _ = run([bad] * (skip.max_consecutive * ways_out), settings_, state)
    assert Action.HALT in {decision.action for decision in decisions}
