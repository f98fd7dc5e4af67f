"""If reading a row at once would stall the device, a step is decided some steps later, with the same answer.

The lag is for accelerators; here it is switched on by hand for a fused optimizer on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from halfguard.errors import TrainingHaltedError
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.records import Action, Cause
from tests.guard.helper import frozen, inject, same
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")

LAG = 2
GOOD, BAD = 1.0, math.nan


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(2, affine=False)


def loss_fn(model: Any, batch: tuple[Tensor, float]) -> Tensor:
    x, loss = batch
    model.norm(x * loss)
    return inject(model.w, loss, 0.5 if math.isfinite(loss) else math.nan)


class Late:
    """A guard that reads its rows two steps late."""

    def __init__(self, config: Any = "default", lag: int = LAG, **options: Any) -> None:
        self.model = Model()
        self.optimizer = AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 0.99**step)
        self.guard = Guard(self.model, self.optimizer, config, scheduler=self.scheduler, **options)
        self.guard._pending.lag = lag

    def run(self, losses: Iterable[float]) -> list[StepOutcome]:
        x = torch.arange(6.0).view(3, 2)
        return [self.guard.step(loss_fn, (x, loss)) for loss in losses]

    def weights(self) -> Any:
        return frozen([self.model.state_dict(), self.optimizer.state_dict()["state"]])

    @property
    def scheduled(self) -> int:
        return int(self.scheduler.last_epoch)


@pytest.mark.on_standin
def test_nothing_is_read_in_a_healthy_step() -> None:
    late = Late(lag=1000)
    late.run([GOOD])
    with OpCounter() as counter:
        late.run([GOOD] * 3)
    assert counter.host_syncs == 0


@pytest.mark.on_standin
def test_weights_are_those_of_a_guard_without_lag() -> None:
    losses = [GOOD, BAD, GOOD, GOOD, BAD, BAD, *[GOOD] * 6]
    ends = []
    for lag in (0, LAG):
        late = Late(lag=lag)
        # With a constant rate: the lag may shift the learning rate by a step or two.
        late.scheduler.lr_lambdas = [lambda _: 1.0]
        outcomes = late.run(losses)
        ends.append((late.weights(), late.guard.scaler.state_dict(), late.guard.summary()))
        assert [bool(o) for o in outcomes] == [loss == GOOD for loss in losses]
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


@pytest.mark.on_standin
def test_outcomes_can_be_read_before_they_are_judged() -> None:
    late = Late()
    good, bad = late.run([GOOD, BAD])
    assert good.applied
    assert (bad.applied, bad.action, bad.cause) == (False, Action.SKIP, Cause.BAD_BATCH)
    assert bad.culprits == ("w",)
    assert math.isnan(bad.loss)
    late.guard.summary()
    assert (bad.action, bad.cause) == (Action.SKIP, Cause.BAD_BATCH), "decided as it was read"


@pytest.mark.on_standin
def test_the_scheduler_catches_up() -> None:
    late = Late()
    late.run([GOOD, GOOD, BAD, BAD, GOOD])
    late.run([GOOD] * 4)
    late.guard.summary()
    assert late.guard._scheduler_and_ema.early_steps == 0
    assert late.scheduled == 7 == late.guard.summary().applied


def test_the_scheduler_holds_after_the_mail_was_read() -> None:
    late = Late()
    late.run([GOOD, GOOD, BAD])
    late.guard.end_epoch()
    ahead = late.scheduled - late.guard.summary().applied
    assert ahead == late.guard._scheduler_and_ema.early_steps == 1
    late.run([GOOD])
    late.guard.summary()
    assert late.scheduled == late.guard.summary().applied == 3


@each("seen", [0, 1, 2, 3])
def test_held_steps_survive_a_stop(seen: int) -> None:
    late = Late()
    late.run([GOOD, GOOD, BAD, BAD])
    late.run([GOOD] * seen)
    states = [
        frozen(part.state_dict())
        for part in (late.model, late.optimizer, late.scheduler, late.guard)
    ]
    again = Late()
    for part, state in zip(
        (again.model, again.optimizer, again.scheduler, again.guard), states, strict=True
    ):
        part.load_state_dict(state)  # type: ignore[attr-defined]
    again.run([GOOD] * (6 - seen))
    assert again.scheduled == again.guard.summary().applied == 8


def test_end_of_epoch_counts_every_step() -> None:
    late = Late()
    late.run([GOOD, BAD, GOOD, GOOD, BAD])
    summary = late.guard.end_epoch()
    assert (summary.steps, summary.applied) == (5, 3)
    assert summary.skipped == {Cause.BAD_BATCH: 2}
    late.run([GOOD])
    assert late.guard.end_epoch().steps == 1


@pytest.mark.parametrize("lag", [0, LAG])
def test_the_last_overflow_of_an_epoch_belongs_to_it(lag: int) -> None:
    late = Late({"scale": {"init": 8.0, "floor": 2.0}}, lag=lag)

    def overflow(model: Any, batch: Tensor) -> Tensor:
        return inject(model.w, 1.0, float(batch))

    for grad in (0.5, 0.5, math.inf):
        late.guard.step(overflow, torch.tensor(grad))
    first = late.guard.end_epoch()
    assert (first.steps, first.scale_reductions, first.scale) == (3, 1, 4.0)
    late.guard.step(overflow, torch.tensor(0.5))
    assert late.guard.end_epoch().scale_reductions == 0
    assert late.guard.close().scale_reductions == 1


@pytest.mark.on_standin
def test_a_halt_comes_late_and_names_the_step() -> None:
    late = Late({"skip": {"max_consecutive": 3}})
    late.run([GOOD, GOOD])
    late.run([BAD] * 3)
    before = late.weights()
    with pytest.raises(TrainingHaltedError, match="step 4 \\(3 consecutive failed steps\\)"):
        late.run([BAD] * (LAG + 1))
    assert same(before, late.weights())


def test_the_end_of_an_epoch_halts_as_well() -> None:
    late = Late({"skip": {"max_consecutive": 3}})
    late.run([BAD] * 3)
    with pytest.raises(TrainingHaltedError, match="step 2"):
        late.guard.end_epoch()


def test_steps_that_end_the_streak_before_the_mail_is_read_do_not_undo_the_halt() -> None:
    late = Late({"skip": {"max_consecutive": 3}})
    with pytest.raises(TrainingHaltedError, match="step 2"):
        late.run([BAD] * 3 + [GOOD] * 3)


RECOVERY = {"skip": {"max_consecutive": 3}, "recovery": {"every": 100, "max_rollbacks": 3}}


def recovering() -> Late:
    """Return a run whose first snapshot counts as good after two steps, and is the only one."""
    with patch("halfguard.guard.recovery.recovery._PROVE", 2):
        return Late(RECOVERY)


def rolled_back(after: list[float]) -> Late:
    late = recovering()
    late.run([GOOD] * 6)
    late.run([BAD] * 3)
    late.run(after)  # these rows are pending when the third bad step is read
    assert late.guard._policy.rollbacks == 1
    return late


@pytest.mark.on_standin
@pytest.mark.parametrize("after", [[BAD, BAD], [GOOD, GOOD], [GOOD, BAD]])
def test_after_rolling_back_what_was_under_way_does_not_count(after: list[float]) -> None:
    """The rollback undoes the steps that were taken before it."""
    late = rolled_back(after)
    assert same(late.model.w.detach(), torch.ones(3)), "back at the first snapshot"
    late.guard.summary()
    assert late.guard._policy.streak == 0
    assert late.guard._scheduler_and_ema.early_steps == 0
    assert late.scheduled == 0
    late.run([BAD, *[GOOD] * 4])
    late.guard.summary()
    assert late.scheduled == 4
    assert late.guard._policy.rollbacks == 1, "one incident is one return"


def test_every_step_is_counted_once_after_a_return() -> None:
    late = rolled_back([BAD, GOOD])
    late.run([GOOD] * 5)
    total = late.guard.summary()
    assert total.steps == 16
    assert total.applied + sum(total.skipped.values()) + total.rollbacks == total.steps


@pytest.mark.on_standin
def test_going_back_while_everything_is_brought_in_gives_up_the_rest() -> None:
    """The end of an epoch reads all pending rows; the rollback undoes the steps after the bad one."""
    late = recovering()
    late.run([GOOD] * 6)
    late.run([BAD, BAD, BAD, GOOD])  # the rows of the last two steps are still pending
    late.guard.end_epoch()
    assert late.guard._policy.rollbacks == 1
    total = late.guard.summary()
    assert total.applied == 6
    assert total.applied + sum(total.skipped.values()) + total.rollbacks == total.steps == 10
