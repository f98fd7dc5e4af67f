"""``verify``: healthy steps run again, without a trace; and a flipped bit that stays finite is seen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from halfguard import Guard
from halfguard.errors import ConfigError, UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.hosted import HostedGuard
from tests.dist.jobs import Engine, batch_of, loss_fn, make, optimizer_of
from tests.guard import flips
from tests.support.models import differences
from tests.support.ranks import Ranks

EVERY: dict[str, Any] = {"verify": {"every": 2}}
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


def train_on_ranks(engine: Engine, extra: dict[str, Any]) -> list[Tensor]:
    model, _ = make(engine)
    guard = Guard(
        model, optimizer_of(model, "sgd"), {"scale": {"init": 2.0}, "accumulate": 2} | extra
    )
    for number in range(8):
        guard.step(loss_fn, batch_of(number, 2, torch.distributed.get_rank()))
    notes = [getattr(row, "text", "") for row in guard._recorder.journal.recent_rows(50)]
    assert not any("verify" in note for note in notes)
    return [getattr(p, "to_local", lambda p=p: p)().detach() for p in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_ranks_repeat_together(engine: Engine) -> None:
    ranks = Ranks(2)
    try:
        bare = ranks.run(train_on_ranks, engine, {})
        assert not differences(bare, ranks.run(train_on_ranks, engine, EVERY))
    finally:
        ranks.close()


@pytest.mark.usefixtures("seed")
def test_where_it_cannot_work_it_raises() -> None:
    with pytest.raises(ConfigError, match="master weights"):
        GuardConfig.load({"precision": "fp16-weights"} | EVERY)
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError, match="framework"):
        HostedGuard(model, AdamW(model.parameters()), EVERY)
