"""NaN gradients that no loss scale cures keep the scale; an overflow that a lower scale cures never does.

The scaler is simulated: a step is applied if the scale is at most ``most``, and lowers the scale otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from halfguard.errors import TrainingHaltedError
from halfguard.guard import policy
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.guard.policy import NanGradients, PolicyState, Signals
from halfguard.records import Action, Cause, StepRow

pytestmark = pytest.mark.usefixtures("seed")

NEVER = 0.0  # the largest scale of a step that no scale cures
PATIENCE = 50


@dataclass
class Run:
    """A run of the policy with a simulated loss scale."""

    scale: float = 1024.0
    floor: float = 1.0
    max_consecutive: int = 10
    patience: int = PATIENCE
    state: PolicyState = field(default_factory=PolicyState)
    scales: list[float] = field(default_factory=list)  # before each step
    plain: float = 0.0  # a scale that falls at every overflow

    def __post_init__(self) -> None:
        self.plain = self.scale
        self.config = GuardConfig.load(
            {
                "scale": {
                    "init": self.scale,
                    "floor": self.floor,
                    "growth_interval": self.patience,
                },
                "skip": {"max_consecutive": self.max_consecutive},
            }
        )

    def step(self, most: float, *, value: float = math.nan) -> policy.Decision:
        self.scales.append(self.scale)
        good = self.scale <= most
        seen = Signals(1.0, 1.0 if good else value, good, self.scale)
        decision, self.state = policy.decide(self.state, seen, self.config)
        if self.plain > most:
            self.plain = max(self.plain / 2, self.floor)
        if not good:
            self.scale = max(self.scale / 2, self.floor)
        if decision.scale is not None:
            self.scale = decision.scale
        return decision

    def steps(self, mosts: Sequence[float]) -> list[policy.Decision]:
        return [self.step(most) for most in mosts]


GOOD = 2.0**20


@given(st.lists(st.sampled_from([2.0, 16.0, 512.0, 1024.0, GOOD]), max_size=200))
def test_an_overflow_that_a_scale_above_1_cures_is_always_calibration(mosts: list[float]) -> None:
    run = Run()
    for decision in run.steps(mosts):
        assert decision.scale is None
        assert decision.routine == (decision.action is Action.SKIP)
    assert run.scale == run.plain
    assert run.state.streak == 0


@given(st.integers(1, 4), st.integers(1, 9))
def test_the_scale_returns_and_stays(bad: int, good: int) -> None:
    run = Run(patience=1000)
    period = [GOOD] * good + [NEVER] * bad
    run.steps(period * 12)
    assert run.state.nan.proved
    before = len(run.scales)
    decisions = run.steps(period * 12)
    assert set(run.scales[before:]) == {1024.0}
    assert not any(decision.routine for decision in decisions)
    assert run.state.streak < 10


def test_one_scale_after_the_other_is_tried_then_the_first_is_restored() -> None:
    run = Run(scale=8.0)
    run.steps([GOOD, NEVER] * 4)
    assert run.scales == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0]
    assert run.step(GOOD).scale == 8.0
    held = run.step(NEVER)
    assert (held.scale, held.routine, held.action) == (8.0, False, Action.SKIP)
    assert run.state.streak == 1


def test_what_was_never_applied_is_not_restored() -> None:
    run = Run(scale=65536.0)
    run.steps([512.0] * 10)  # calibrated from 65536 to 512
    run.steps([NEVER, 512.0] * 15)
    assert run.scales[-5:] == [512.0] * 5


@given(st.integers(0, 60), st.sampled_from([2, 3, 10]))
def test_a_run_of_nothing_but_nan_is_halted(good: int, max_consecutive: int) -> None:
    run = Run(max_consecutive=max_consecutive)
    run.steps([GOOD, GOOD, NEVER] * (good // 3))
    # Falls of the scale do not count, but there are at most ten of them for each restored scale.
    most = 10 + max_consecutive // 2 + 10 + max_consecutive
    actions = [decision.action for decision in run.steps([NEVER] * most)]
    assert Action.HALT in actions


@pytest.mark.parametrize("needed", [512.0, 64.0, 2.0])
def test_a_scale_that_is_too_large_by_now_falls_again(needed: float) -> None:
    run = Run(max_consecutive=10)
    run.steps([GOOD, NEVER] * 12)
    assert run.state.nan.proved
    assert run.scale == 1024.0
    decisions = run.steps([needed] * 40)  # from here on, 1024 is too large for every step
    assert Action.HALT not in {decision.action for decision in decisions}
    assert run.scale == needed
    assert decisions[-1].action is Action.APPLY


def test_an_overflow_that_is_infinite_and_not_nan_lowers_the_scale() -> None:
    run = Run()
    run.steps([GOOD, NEVER] * 12)
    decision = run.step(512.0, value=math.inf)
    assert (decision.scale, decision.routine) == (None, True)
    assert run.scale == 512.0
    assert run.state.nan == NanGradients()


def test_the_answer_is_tried_again_after_some_time() -> None:
    run = Run()
    run.steps([GOOD, NEVER] * 12)
    run.steps([GOOD] * PATIENCE)
    assert not run.state.nan.proved
    assert run.step(NEVER).routine


def test_above_a_floor_of_more_than_1_nothing_is_known() -> None:
    run = Run(floor=4.0)
    run.steps([GOOD, NEVER] * 30)
    assert not run.state.nan.proved
    assert run.scale == 4.0


# -- the guard


def distance(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x).float()
    return (y - y.roll(1, 0)).square().sum(-1).sqrt().mean()


def batch(index: int, every: int = 4) -> Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
    if index % every == every - 1:
        x[1] = x[0]  # equal rows: the square root of 0 has a NaN gradient in every precision
    return x


def guard_of(optimizer: str, config: dict[str, Any]) -> Guard:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    made = {
        "sgd": lambda: SGD(model.parameters(), lr=0.01),
        "fused": lambda: AdamW(model.parameters(), lr=0.001, fused=True),
    }[optimizer]()
    return Guard(model, made, {"scale": {"init": 1024.0}} | config)


@pytest.mark.parametrize("mode", ["skip", "retry_fp32"])
def test_the_square_root_of_0_does_not_cost_the_scale(mode: str) -> None:
    guard = guard_of("sgd", {"skip": {"on_nonfinite": mode}})
    for index in range(120):
        guard.step(distance, batch(index))
    summary = guard.summary()
    assert guard.scaler.get_scale() == 1024.0
    assert summary.skipped == {Cause.GRADIENT_OVERFLOW: 30}
    assert summary.scale_reductions <= (10 if mode == "skip" else 0)
    rows = [row for row in guard._recorder.journal.recent_rows(100) if isinstance(row, StepRow)]
    assert not rows[-1].routine
    assert "NaN" in rows[-1].evidence


def test_a_host_that_reads_late_keeps_the_scale_as_well() -> None:
    guard = guard_of("fused", {})
    guard._pending.lag = 2
    for index in range(120):
        guard.step(distance, batch(index, every=6))
    guard.end_epoch()
    assert guard.scaler.get_scale() == 1024.0


def test_the_scale_does_not_change_inside_an_open_step() -> None:
    """Micro-batches of one step must be scaled alike, whenever the host reads its rows."""
    guard = guard_of("fused", {"accumulate": 2, "scale": {"init": 4.0}})
    guard._pending.lag = 2
    scales = set()
    for index in range(80):
        guard.step(distance, batch(index, every=3))
        if guard._batches.micro_batches:
            scale = guard.scaler.get_scale()
            guard.summary()
            assert guard.scaler.get_scale() == scale
            scales.add(scale)
    assert scales > {4.0, 1.0}


def test_a_run_that_only_has_nan_gradients_ends_with_the_truth() -> None:
    guard = guard_of("sgd", {"scale": {"init": 8.0}})
    bad = batch(3)
    for _ in range(3 + 9):
        assert guard.step(distance, bad).cause is Cause.GRADIENT_OVERFLOW
    with pytest.raises(TrainingHaltedError) as caught:
        guard.step(distance, bad)
    text = str(caught.value)
    assert "gradients contained NaN" in text
    assert "The loss scale was 1, which does not enlarge gradients" in text
    assert "floor" not in text
