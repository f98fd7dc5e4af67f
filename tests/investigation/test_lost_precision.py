"""Numbers that half rounds away: positions, and updates of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.investigation.lost_precision import LostUpdates, RoundedPositions
from halfguard.investigation.training_loop import TrainingLoop


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
