"""Numbers that half rounds away: positions, and updates of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import RoundedIntegers
from halfguard.investigation.lost_updates import LostUpdates
from halfguard.investigation.passes import Made, Misused

pytestmark = pytest.mark.usefixtures("seed")


class Looking(TorchDispatchMode):
    """Shows every operation to the sensor."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = RoundedIntegers(HookBus())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.positions.on_operation(func, args, out)
        return out


@pytest.mark.parametrize(
    ("numbers", "dtype", "rounded"),
    [
        (torch.arange(6000, 6064), torch.float16, True),
        (torch.arange(6000, 6064, dtype=torch.int32), torch.float16, True),
        (torch.arange(300, 364), torch.bfloat16, True),
        (torch.arange(0, 1024), torch.float16, False),  # all of them fit
        (torch.arange(6000, 6064), torch.float32, False),
        (torch.arange(6000, 9000, 7), torch.float16, False),  # no positions
        (torch.arange(6000, 6004), torch.float16, False),  # too few
        (torch.arange(6000, 6064).view(8, 8), torch.float16, False),  # a picture, or tokens
        (torch.full((64,), 6001), torch.float16, False),  # equal before
        (torch.ones(64, dtype=torch.bool), torch.float16, False),
    ],
)
def test_positions_that_become_equal_are_told(
    numbers: torch.Tensor, dtype: torch.dtype, rounded: bool
) -> None:
    with Looking() as looking:
        numbers.to(dtype)
    assert bool([*looking.positions.found(Made(), "")]) is rounded


class Own(torch.optim.SGD):
    """An optimizer of the user, which may keep FP32 weights of its own."""


def train(
    net: nn.Module, rates: Sequence[float], make: type[torch.optim.SGD] = torch.optim.SGD
) -> tuple[Misused, ...]:
    """Step once with each rate, and return what is told of the updates."""
    bus = HookBus()
    updates = LostUpdates(bus)
    bus.listen(updates)
    bus.install()
    optimizer = make(net.parameters(), lr=rates[0])
    dtype = next(net.parameters()).dtype
    try:
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            net(torch.linspace(-1, 1, 32).view(4, 8).to(dtype)).float().sum().backward()
            updates.is_on = True
            optimizer.step()
    finally:
        bus.remove()
    return tuple(updates.found(Made(), ""))


def linear(dtype: torch.dtype, value: float = 1.0) -> nn.Linear:
    net = nn.Linear(8, 8)
    nn.init.constant_(net.weight, value)
    nn.init.constant_(net.bias, value)
    return net.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_updates_that_are_lost_in_every_step_are_told(dtype: torch.dtype) -> None:
    (told,) = train(linear(dtype), [1e-7] * 3)
    assert told.kind == "lost updates"
    assert told.sentence.startswith("All of the updates")
    assert f"torch.{told.dtype}" == str(dtype)


@pytest.mark.parametrize(
    ("dtype", "rates"),
    [
        (torch.float16, [0.1] * 3),
        (torch.bfloat16, [0.1] * 3),
        (torch.float32, [1e-7] * 3),  # FP32 weights, or masters of half ones
        (torch.float16, [0.0, 0.1, 0.1]),  # a warm-up
        (torch.float16, [0.1, 0.1, 0.0]),  # the end of a schedule
        (torch.float16, [1e-7] * 2),  # too few to tell
    ],
)
def test_updates_that_are_not_lost_are_not_told(dtype: torch.dtype, rates: list[float]) -> None:
    assert train(linear(dtype), rates) == ()


def test_steps_of_another_optimizer_are_not_judged() -> None:
    assert train(linear(torch.float16), [1e-7] * 3, Own) == ()


@pytest.mark.parametrize(("large", "unsure"), [(4, [False]), (16, [True]), (48, [True])])
def test_updates_are_called_lost_if_nine_tenths_are_and_perhaps_if_half_or_a_whole_tensor_are(
    large: int, unsure: list[bool]
) -> None:
    net = linear(torch.float16)
    with torch.no_grad():
        net.weight.view(-1)[:large] = 1e-4  # so small that an update changes it
    assert [told.unsure for told in train(net, [1e-5] * 3)] == unsure


def test_a_tensor_that_never_moves_is_told_beside_others_that_learn() -> None:
    net = linear(torch.float16)
    nn.init.constant_(net.weight, 1e-4)
    (told,) = train(net, [1e-5] * 3)
    assert told.unsure
    assert "16-bit weights (1 of 2 tensors) are lost" in told.sentence
    nn.init.constant_(net.bias, 1e-4)
    assert train(net, [1e-5] * 3) == ()


def test_elements_without_a_gradient_do_not_count() -> None:
    layer = linear(torch.float16)
    with torch.no_grad():
        layer.bias[2:] = -1000.0  # these units are off
        layer.weight[:2] = 1e-4
        layer.bias[:2] = 1e-4
    assert train(nn.Sequential(layer, nn.ReLU()), [1e-4] * 3) == ()


class Words(nn.Embedding):
    """An embedding with sparse gradients, of which two rows are used, one of them twice."""

    def __init__(self) -> None:
        super().__init__(8, 8, sparse=True)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return super().forward(torch.tensor([1, 1, 2])) + input[:3]


@pytest.mark.parametrize(("rate", "lost"), [(1e-9, True), (1.0, False)])
def test_sparse_gradients_are_counted_too(rate: float, lost: bool) -> None:
    assert bool(train(Words().half(), [rate] * 3)) is lost


@pytest.mark.parametrize("rate", [0.0, torch.tensor(0.0)])
def test_a_learning_rate_of_0_loses_no_updates(bus: HookBus, rate: float | torch.Tensor) -> None:
    updates = LostUpdates(bus)
    bus.listen(updates)
    frozen, weight = (torch.ones(8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [frozen], "lr": rate}, {"params": [weight]}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    for _ in range(3):
        (frozen * weight).float().sum().backward()
        updates.is_on = True
        optimizer.step()
    assert not [*updates.found(Made(), "")]
    assert list(updates._lost.values()) == [[(0, 8)] * 3]


@pytest.mark.parametrize(
    ("numbers", "dtype", "rounded"),
    [
        (torch.tensor([3.0, 2900.0]).half(), torch.int64, True),
        (torch.tensor([3.0, 300.0]).bfloat16(), torch.int32, True),
        (torch.tensor([3.0, 2000.0]).half(), torch.int64, False),  # exact
        (torch.tensor([0.5, 2900.0]).half(), torch.int64, False),  # no ids
        (torch.tensor([3.0, 2900.0]), torch.int64, False),
        (torch.tensor([3.0, 2900.0]).half(), torch.bool, False),
        (torch.tensor([3.0, 2900.0]).half(), torch.float32, False),
    ],
)
def test_ids_that_were_kept_in_half_are_told_if_fp32_confirms_it(
    numbers: torch.Tensor, dtype: torch.dtype, rounded: bool
) -> None:
    with Looking() as looking:
        numbers.to(dtype)
    assert [one.unsure for one in looking.positions.found(Made(), "")] == [True] * rounded
