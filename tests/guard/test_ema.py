"""Averages of weights: every kind that the guard can update and roll back; others are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.records import Action
from tests.guard.helper import frozen, same
from tests.support.cases import each
from tests.support.devices import place

pytestmark = pytest.mark.usefixtures("device", "seed")

RECOVERY = {"every": 3}
GOOD, BAD = torch.ones(2, 4), torch.full((2, 4), torch.nan)


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(place(x)).square().mean()


class ModelEma(nn.Module):
    """The interface of timm's ``ModelEmaV3``."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int | None = None) -> None:
        for mine, theirs in zip(
            self.module.state_dict().values(), model.state_dict().values(), strict=True
        ):
            mine.lerp_(theirs, 1 - self.decay)


class Wrapper:
    """An average without a state of its own: it holds a module, or tensors only."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self.name = name
        setattr(self, name, copy.deepcopy(model))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, theirs in zip(
            getattr(self, self.name).parameters(), model.parameters(), strict=True
        ):
            mine.lerp_(theirs, 0.1)


class TensorsOnly:
    def __init__(self, model: nn.Module) -> None:
        self.shadow = [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.shadow, model.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)


AVERAGES: dict[str, Any] = {
    "AveragedModel": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "ModelEmaV3": ModelEma,
    "holds a module": lambda m: Wrapper(m, "module"),
    "holds an ema": lambda m: Wrapper(m, "ema"),
}


def weights(average: Any) -> Any:
    module = getattr(average, "module", None) or average.ema
    return frozen([p.detach() for p in module.parameters()])


@each("store", ["memory", "disk"])
@each("kind", AVERAGES)
def test_it_follows_applied_steps_and_returns_with_a_rollback(
    kind: str, store: str, tmp_path: Path
) -> None:
    model = nn.Linear(4, 1)
    average = AVERAGES[kind](model)
    config = {
        "precision": "fp32",
        "skip": {"max_consecutive": 2},
        "recovery": RECOVERY | {"store": store},
    }
    guard = Guard(model, SGD(model.parameters(), lr=0.01), config, ema=average, run_dir=tmp_path)
    kept = []
    for _ in range(5):
        assert guard.step(loss_fn, GOOD).applied
        kept.append(weights(average))
    assert not same(kept[0], kept[-1])
    assert guard.step(loss_fn, BAD).action is Action.SKIP
    assert same(weights(average), kept[-1])
    assert guard.step(loss_fn, BAD).action is Action.ROLL_BACK
    assert same(weights(average), kept[2])


@pytest.mark.on_standin
@each("kind", AVERAGES)
def test_it_is_that_of_the_bare_loop(kind: str) -> None:
    model = nn.Linear(4, 1)
    bare = copy.deepcopy(model)
    guarded, expected = AVERAGES[kind](model), AVERAGES[kind](bare)
    guard = Guard(model, SGD(model.parameters(), lr=0.01), {"precision": "fp32"}, ema=guarded)
    optimizer = SGD(bare.parameters(), lr=0.01)
    for _ in range(5):
        assert guard.step(loss_fn, GOOD).applied
        loss_fn(bare, GOOD).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        update = expected.update_parameters if kind == "AveragedModel" else expected.update
        update(bare)
    assert same(weights(guarded), weights(expected))


class OverParameters:
    """Like torch_ema's, whose ``update`` takes parameters."""

    def update(self, parameters: Any = None) -> None: ...


class WithoutArguments:
    """Like ema_pytorch's, which holds the model itself."""

    def update(self) -> None: ...


class Steps:
    """Like the EMAModel of diffusers."""

    def step(self, parameters: Any) -> None: ...


@each("average", [OverParameters(), WithoutArguments(), Steps(), object()])
def test_one_that_cannot_be_updated_is_refused_at_construction(average: Any) -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(UsageError, match=r"neither update_parameters\(model\) nor") as caught:
        Guard(model, SGD(model.parameters(), lr=0.01), ema=average)
    assert "AveragedModel" in caught.value.cure


def test_one_that_cannot_be_rolled_back_is_refused_with_recovery_only() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    with pytest.raises(UsageError, match="cannot roll back the ema, a TensorsOnly") as caught:
        Guard(model, optimizer, {"recovery": RECOVERY}, ema=TensorsOnly(model))
    assert "both methods" in caught.value.cure
    average = TensorsOnly(model)
    before = frozen(average.shadow)
    guard = Guard(model, optimizer, {"precision": "fp32"}, ema=average)
    assert guard.step(loss_fn, GOOD).applied
    assert not same(before, frozen(average.shadow))
