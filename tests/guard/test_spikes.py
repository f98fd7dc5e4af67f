"""Limits that follow the run: a single spike is refused, a level that lasts or recurs is accepted."""

from __future__ import annotations

import math
import random
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.guard import policy
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.guard.policy import PolicyState, Signals
from halfguard.guard.spikes import ACCEPT_AFTER, accepted_level, upper_limit
from halfguard.records import Action, StepRow

pytestmark = pytest.mark.usefixtures("seed")


PRESETS = map(GuardConfig.load, ("fp16_safe", "ultra_conservative"))
SPIKES: list[Any] = [{}, *(preset.spike for preset in PRESETS)]


class Run:
    """A run of the policy: a step above its limits is refused, as the device does it."""

    def __init__(self, **config: Any) -> None:
        self.config = GuardConfig.load({"precision": "fp32", "spike": {}} | config)
        self.state = PolicyState()
        self.notes: list[str] = []

    def step(self, loss: float, grad_norm: float = 1.0) -> Action:
        limits = policy.next_limits(self.state, self.config)
        seen = Signals(loss, grad_norm, True, 1.0, limits)
        decision, self.state = policy.decide(self.state, seen, self.config)
        self.notes += [decision.note] if decision.note else []
        return decision.action

    def steps(self, losses: list[float]) -> list[Action]:
        return [self.step(loss, abs(loss)) for loss in losses]


def noise(count: int, level: float = 1.0, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.uniform(0.8, 1.2) for _ in range(count)]


levels = st.sampled_from([1e-3, 1.0, -5.0, 700.0])


@pytest.mark.slow
@given(levels, st.floats(3, 1e6), st.integers(0, 50))
def test_a_lasting_change_is_refused_a_few_times_and_then_accepted(
    level: float, factor: float, seed: int
) -> None:
    run = Run()
    run.steps(noise(60, level, seed))
    distance = factor * abs(level)
    after = run.steps([level + distance * value for value in noise(200, 1.0, seed + 1)])
    refused = after.count(Action.SKIP)
    assert after[:ACCEPT_AFTER] == [Action.SKIP] * ACCEPT_AFTER
    assert refused == ACCEPT_AFTER
    assert Action.HALT not in after
    assert len(run.notes) == 1


@pytest.mark.slow
@given(levels, st.floats(10, 1e30), st.integers(1, 3))
def test_a_single_spike_is_refused_however_often_the_run_goes_on(
    level: float, factor: float, spikes: int
) -> None:
    run = Run()
    for number in range(spikes):
        run.steps(noise(60, level, number))
        assert run.step(level + factor * abs(level), 1.0) is Action.SKIP
        assert not run.notes


@given(st.floats(10.0, 1000.0))
def test_spikes_that_do_not_agree_are_never_accepted(factor: float) -> None:
    run = Run(skip={"max_consecutive": 100})
    run.steps(noise(60))
    spikes = [10.0 * factor**power for power in range(1, 10)]
    for spike in spikes:
        if math.isfinite(spike) and spike < 1e38:
            assert run.step(spike) is Action.SKIP
    assert not run.notes


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(10, 300), st.integers(0, 20), st.sampled_from(SPIKES))
def test_a_level_that_recurs_is_learnt_from(period: int, seed: int, spike: Any) -> None:
    """A reward in one of many steps: the first are refused, then most are applied."""
    run, draw = Run(skip={"max_consecutive": 10}, spike=spike), random.Random(seed)
    rewards = []
    for index in range(period * 40):
        reward = index % period == period - 1
        loss = draw.expovariate(1.0) + 0.5 if reward else 0.0
        action = run.step(loss, 10 * loss)
        assert action is not Action.HALT
        rewards += [action is Action.APPLY] if reward else []
    assert not any(rewards[1:3]) or period <= 40  # the first ones may fall into the warm-up
    assert sum(rewards[20:]) >= 14


@patch("halfguard.guard.spikes.WINDOW", 32)
def test_a_level_is_forgotten_when_nothing_needs_it() -> None:
    run = Run()
    run.steps(noise(40))
    run.steps([100.0] * ACCEPT_AFTER)
    assert policy.next_limits(run.state, run.config).loss > 100
    run.steps(noise(8 * 32 + 1))
    assert policy.next_limits(run.state, run.config).loss < 10
    assert run.step(100.0, 100.0) is Action.SKIP


@patch("halfguard.guard.spikes.WINDOW", 32)
def test_spikes_that_lie_far_apart_are_single_spikes() -> None:
    run = Run()
    for number in range(3 * ACCEPT_AFTER):
        run.steps(noise(8 * 32 + 1, seed=number))
        assert run.step(100.0, 100.0) is Action.SKIP
    assert not run.notes


@pytest.mark.parametrize(("given", "norm"), [({"max_grad_norm": 5.0}, 100.0), ({}, math.inf)])
def test_a_configured_limit_never_adapts_nor_any_to_infinity(given: Any, norm: float) -> None:
    run = Run(skip=given | {"max_consecutive": 100})
    run.steps(noise(60))
    for _ in range(50):
        assert run.step(1.0, norm) is Action.SKIP
    assert policy.next_limits(run.state, run.config).grad_norm <= 5.0
    assert not run.notes


def test_with_recovery_spikes_in_a_row_roll_back_and_recurring_ones_are_accepted() -> None:
    run = Run(recovery={})
    run.steps(noise(60))
    actions = run.steps([100.0] * 10)
    assert actions == [Action.SKIP] * 9 + [Action.ROLL_BACK]
    run.steps(noise(60))
    recurring = [run.steps([100.0, *noise(3)])[0] for _ in range(8)]
    assert recurring[: ACCEPT_AFTER + 1] == [Action.SKIP] * ACCEPT_AFTER + [Action.APPLY]


FLOAT32 = st.floats(-(2.0**99), 2.0**99, width=32)  # as measured on the device


@given(
    st.lists(FLOAT32, min_size=2, max_size=20),
    st.lists(FLOAT32, min_size=ACCEPT_AFTER, max_size=ACCEPT_AFTER),
    st.floats(0.1, 10),
)
def test_an_accepted_level_lies_above_most_spikes_and_is_finite(
    values: list[float], refused: list[float], sigma: float
) -> None:
    level = accepted_level(values, refused, sigma)
    if level is None or sorted(refused)[ACCEPT_AFTER // 2] <= upper_limit(values, sigma):
        return
    assert math.isfinite(level)
    assert sum(value <= level for value in refused) > ACCEPT_AFTER // 2


@patch.multiple("halfguard.guard.spikes", WINDOW=8, WARM_UP=4)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), max_size=120))
def test_nothing_above_its_limit_is_ever_applied(steps: list[tuple[float, float]]) -> None:
    run = Run(spike={"sigma": 3.0}, skip={"max_consecutive": 1000})
    for loss, norm in steps:
        limits = policy.next_limits(run.state, run.config)
        above = loss > limits.loss or norm > limits.grad_norm
        assert run.step(loss, norm) is (Action.SKIP if above else Action.APPLY)
        memory = run.state.spikes
        assert len(memory.refused_losses) == len(memory.refused_norms) <= ACCEPT_AFTER
        assert len(memory.losses) == len(memory.grad_norms) <= 8


# -- the guard


def scaled_square(model: nn.Module, batch: tuple[Tensor, float]) -> Tensor:
    y: Tensor = model(batch[0])
    return y.float().square().mean() * batch[1]


def test_a_loss_that_becomes_100_times_larger_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    config = {"precision": "fp32", "spike": {}}
    guard = Guard(model, SGD(model.parameters(), lr=1e-4), config)
    factors = [1.0] * 50 + [100.0] * 70
    actions = [guard.step(scaled_square, (torch.randn(8, 4), f)).action for f in factors]
    assert actions[50:55] == [Action.SKIP] * 5
    assert actions[60:].count(Action.APPLY) >= 55
    told = [record.getMessage() for record in caplog.records if "accepted" in record.getMessage()]
    assert len(told) == 1
    rows = guard._recorder.journal.recent_rows(100)
    assert any(isinstance(row, StepRow) and "accepted from now on" in row.note for row in rows)
