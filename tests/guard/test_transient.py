"""A step that was bad once and is finite when it is run again as it was: the machine, not the numbers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn
from torch.optim import SGD

from halfguard import Guard
from halfguard.journal import read_rows
from halfguard.records import Action
from tests.guard import flips
from tests.guard.healing.jobs import BY_NAME

RETRY: dict[str, Any] = {
    "scale": {"init": 64.0},
    "skip": {"on_nonfinite": "retry_fp32"},
    "heal": {},
}
STEPS, AT = 8, 4


class Flipped(torch.autograd.Function):
    """The identity; one number of its value or of its gradient is infinite, once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: dict[str, bool]) -> Tensor:
        ctx.fault, x = fault, x.clone()
        if fault.pop("value", False):
            x.view(-1)[3] = torch.inf
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        if ctx.fault.pop("gradient", False):
            grad.view(-1)[3] = torch.inf
        return grad, None


FAULT: dict[str, bool] = {}  # of the machine: no state of the step


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Flipped.apply(self.first(x), FAULT))  # type: ignore[no-any-return]


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().pow(2).mean()  # type: ignore[no-any-return]


def train(kind: str, accumulate: int = 1, **options: Any) -> tuple[Guard, list[Action]]:
    torch.manual_seed(0)
    FAULT.clear()
    model, actions = Net(), []
    config = RETRY | {"accumulate": accumulate} | options.pop("config", {})
    guard = Guard(model, SGD(model.parameters(), lr=0.01), config, **options)
    for step in range(STEPS * accumulate):
        FAULT.update({kind: True} if step == AT * accumulate else {})
        outcome = guard.step(loss_of, torch.randn(4, 8))
        if (step + 1) % accumulate == 0:
            actions.append(outcome.action)
    guard.close()
    return guard, actions


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Forget what other tests have compiled: with compiled code no fault is called transient."""
    torch._dynamo.utils.counters.clear()


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["value", "gradient"])
def test_a_fault_that_does_not_come_again_is_the_machines(
    kind: str, accumulate: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "halfguard"):
        guard, actions = train(kind, accumulate, run_dir=tmp_path)
    assert [action == Action.RETRY for action in actions] == [step == AT for step in range(STEPS)]
    assert guard.scaler.get_scale() == 64.0
    assert not (tmp_path / "plan.yaml").exists()
    notes = [getattr(row, "note", "") for row in read_rows(tmp_path / "steps.jsonl")]
    assert sum("transient fault" in note for note in notes) == 1
    assert sum("transient fault" in text for text in caplog.messages) == 1


@pytest.mark.usefixtures("seed")
def test_private_runs_do_not_name_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "halfguard"):
        train("value", config={"privacy": True})
    [text] = [text for text in caplog.messages if "transient fault" in text]
    assert "loss scale (rank 0)." in text


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_an_overflow_is_never_the_machines(name: str, caplog: pytest.LogCaptureFixture) -> None:
    work = BY_NAME[name].job(0)
    config = RETRY | {"scale": {"init": 2.0**16}}
    guard = Guard(work.model, work.optimizer, config)
    for batch in work.take(6):
        guard.step(work.loss, batch)
    assert not any("transient fault" in text for text in caplog.messages)


@pytest.mark.usefixtures("seed")
def test_flipped_bits_are_transient_unless_the_weight_keeps_them() -> None:
    """``scripts/soak flips`` runs more of the same."""
    found = flips.main(48, seed=3)
    said = {place: {what for where, what in found if where == place} for place in flips.PLACES}
    assert "transient" not in said["weight"]
    assert "transient" in said["activation"] | said["gradient"]
    assert "repeatable" not in said["activation"] | said["gradient"]
