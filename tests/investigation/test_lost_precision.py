"""Numbers that half rounds away: positions, and updates of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.investigation.lost_precision import (
    LostUpdates,
    RoundedPositions,
    SmallGradients,
)
from halfguard.investigation.training_loop import BackwardCall, TrainingLoop


class Looking(TorchDispatchMode):
    """Shows every operation to the sensor."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = RoundedPositions()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.positions.look(func, args, out)
        return out


@pytest.mark.parametrize(
    ("numbers", "dtype", "rounded"),
    [
        (torch.arange(6000, 6064), torch.float16, True),
        (torch.arange(300, 364), torch.bfloat16, True),
        (torch.arange(0, 1024), torch.float16, False),  # all of them fit
        (torch.arange(6000, 6064), torch.float32, False),
        (torch.arange(6000, 9000, 7), torch.float16, False),  # no positions
        (torch.arange(6000, 6004), torch.float16, False),  # too few
    ],
)
def test_positions_that_become_equal_are_told(
    numbers: torch.Tensor, dtype: torch.dtype, rounded: bool
) -> None:
    with Looking() as looking:
        numbers.to(dtype)
    assert bool(looking.positions.found()) is rounded


@pytest.mark.parametrize(("rate", "lost"), [(1e-7, True), (1.0, False)])
def test_updates_that_are_lost_in_every_step_are_told(rate: float, lost: bool) -> None:
    updates = LostUpdates(TrainingLoop())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(8, 8).half()
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for _ in range(3):
            net(torch.randn(4, 8).half()).float().square().sum().backward()
            updates.is_on = True
            optimizer.step()
    updates.remove()
    assert bool(updates.found()) is lost


@pytest.fixture
def small() -> Iterator[SmallGradients]:
    sensor = SmallGradients(TrainingLoop())
    yield sensor
    sensor.remove()


SPARSE = torch.sparse_coo_tensor(
    torch.tensor([[0, 0, 3]]), torch.full((3,), 1e-9), (5,), check_invariants=True
)


@pytest.mark.parametrize("gradient", [torch.full((4,), 1e-9), SPARSE])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
def test_small_gradients_are_told_under_fp16_autocast_alone(
    small: SmallGradients, gradient: torch.Tensor, dtype: torch.dtype | None
) -> None:
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = torch.ones(())
    call = BackwardCall([loss], [loss], scaled=False, accumulates=True)
    for _ in range(4):
        small.look(call, [gradient])
    assert bool(small.found()) is (dtype is torch.float16)


def test_updates_by_sparse_gradients_are_looked_at() -> None:
    updates = LostUpdates(TrainingLoop())
    table = nn.Embedding.from_pretrained(torch.ones(10, 4).bfloat16(), freeze=False, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1e-7)
    for _ in range(3):
        table(torch.tensor([1, 1, 2])).float().sum().backward()
        updates.is_on = True
        optimizer.step()
    updates.remove()
    assert updates.found()


@pytest.mark.parametrize("rate", [0.0, torch.tensor(0.0)])
def test_a_learning_rate_of_0_loses_no_updates(rate: float | torch.Tensor) -> None:
    updates = LostUpdates(TrainingLoop())
    frozen, weight = (torch.ones(8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [frozen], "lr": rate}, {"params": [weight]}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    for _ in range(3):
        (frozen * weight).float().sum().backward()
        updates.is_on = True
        optimizer.step()
    updates.remove()
    assert not updates.found()
    assert updates._shares == [0.0, 0.0, 0.0]
