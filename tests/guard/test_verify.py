"""``verify``: healthy steps run again, without a trace; and a flipped bit that stays finite is seen."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from halfguard import Guard
from halfguard.errors import ConfigError, UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.hosted import HostedGuard
from tests.dist.count_collectives import Calls, Collectives
from tests.dist.jobs import Engine, batch_of, loss_fn, make, optimizer_of
from tests.guard import flips
from tests.support.counting import OpCounter
from tests.support.models import differences
from tests.support.ranks import Ranks

EVERY: dict[str, Any] = {"verify": {"every": 2}}
EQUAL = [True, True, False, True]  # the third of four steps is run again
CONFIG: dict[str, Any] = {"scale": {"init": 256.0}}


class Net(nn.Module):
    """A model with statistics, random numbers, and state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.calls, self.hidden = 0, torch.zeros(16)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = flips.Flipped.apply(self.norm(self.first(x)))
        self.hidden = self.hidden + hidden.detach().float().mean(0)
        dropped = nn.functional.dropout(hidden + 1e-3 * self.hidden, 0.2, self.training)
        return self.last(dropped)  # type: ignore[no-any-return]


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch.pop()).float().pow(2).mean()  # type: ignore[no-any-return]


def train(extra: dict[str, Any], accumulate: int = 1, flip_at: int = -1) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = AdamW(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, CONFIG | {"accumulate": accumulate} | extra)
    for step in range(7 * accumulate):
        flips.flips().clear()
        if step == flip_at:
            flips.flips()["activation"] = 5, 9  # a digit: the step stays finite
        guard.step(loss_of, [torch.randn(4, 8)])
    state = guard.state_dict()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "guard": state,
        "own": [model.calls, model.hidden],
    }


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-mixed", "fp32"])
def test_a_healthy_run_is_bitwise_the_run_without(
    accumulate: int, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"precision": precision}
    assert not differences(train(given, accumulate), train(given | EVERY, accumulate))
    assert not caplog.messages


@pytest.mark.usefixtures("seed")
def test_a_wrong_digit_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "halfguard"):
        train(EVERY, flip_at=4)
        train(EVERY, flip_at=3)  # a step that is not repeated
    [told] = [text for text in caplog.messages if "verify" in text]
    assert "differs from two repeats" in told
    assert "rank 0 on " in told


@pytest.mark.usefixtures("seed")
def test_other_steps_cost_nothing() -> None:
    """The same operations and host syncs at every step but the third."""

    def counts(extra: dict[str, Any]) -> list[Counter[str]]:
        model = nn.Linear(8, 1)
        guard = Guard(model, AdamW(model.parameters()), CONFIG | extra)
        found = []
        for _ in range(4):
            with OpCounter() as counted:
                guard.step(loss_of, [torch.randn(4, 8)])
            found.append(counted.ops)
        return found

    bare, verified = counts({}), counts(EVERY)
    assert [one == other for one, other in zip(bare, verified, strict=True)] == EQUAL


def train_on_ranks(engine: Engine, extra: dict[str, Any]) -> tuple[list[Tensor], list[Calls]]:
    model, _ = make(engine)
    guard = Guard(
        model, optimizer_of(model, "sgd"), {"scale": {"init": 2.0}, "accumulate": 2} | extra
    )
    sent = []
    for number in range(4):
        with Collectives() as counted:
            for micro in range(2):
                batch = batch_of(2 * number + micro, 2, torch.distributed.get_rank())
                guard.step(loss_fn, batch)
        sent.append(counted.seen)
    notes = [getattr(row, "text", "") for row in guard._recorder.journal.recent_rows(50)]
    assert not any("verify" in note for note in notes)
    weights = [getattr(p, "to_local", lambda p=p: p)().detach() for p in model.parameters()]
    return weights, sent


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_ranks_repeat_together(engine: Engine) -> None:
    ranks = Ranks(2)
    try:
        bare = ranks.run(train_on_ranks, engine, {})
        verified = ranks.run(train_on_ranks, engine, EVERY)
        for (weights, sent), (same, more) in zip(bare, verified, strict=True):
            assert not differences(weights, same)
            assert [one == other for one, other in zip(sent, more, strict=True)] == EQUAL
    finally:
        ranks.close()


@pytest.mark.usefixtures("seed")
def test_where_it_cannot_work_it_raises() -> None:
    with pytest.raises(ConfigError, match="master weights"):
        GuardConfig.load({"precision": "fp16-weights"} | EVERY)
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError, match="framework"):
        HostedGuard(model, AdamW(model.parameters()), EVERY)
