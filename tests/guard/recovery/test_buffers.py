"""Buffers that are not part of the state_dict are rolled back as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.guard.guard import Guard
from halfguard.guard.recovery.snapshots import restore_buffers
from halfguard.records import Action
from tests.support.devices import place

pytestmark = pytest.mark.usefixtures("device", "seed")

GOOD, BAD = torch.ones(2, 4), torch.full((2, 4), torch.nan)


class Net(nn.Module):
    """A running mean, an infinite mask, a cache that grows, and a buffer that cannot be written to."""

    seen: Tensor
    cache: Tensor
    expanded: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        for name, value in {
            "seen": torch.zeros(4),
            "mask": torch.full((2, 2), -torch.inf).triu(1),
            "cache": torch.zeros(1),
            "expanded": torch.zeros(1).expand(3),
        }.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().nan_to_num().mean(0)
        self.cache = torch.zeros(len(self.cache) + 1)
        return self.linear(x)


@pytest.mark.on_standin
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_they_return_to_the_snapshot(store: str, tmp_path: Path) -> None:
    model = Net()
    config: dict[str, Any] = {
        "precision": "fp32",
        "skip": {"max_consecutive": 2},
        "recovery": {"every": 3, "store": store},
    }
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config, run_dir=tmp_path)
    for step in range(5):
        assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied
        assert model.seen[0] == step + 1
    model.expanded = torch.ones(1).expand(3)
    for _ in range(2):
        outcome = guard.step(lambda m, x: m(place(x)).square().mean(), BAD)
    assert outcome.action is Action.ROLL_BACK
    assert model.seen.tolist() == [3.0] * 4
    assert len(model.cache) == 6, "as after the last applied step: a rollback does not shrink it"
    assert model.expanded.tolist() == [0.0] * 3
    assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied


def test_a_nan_in_one_is_not_taken() -> None:
    model = Net()
    config = {"precision": "fp32", "recovery": {"every": 3}}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config)
    model.seen[0] = torch.nan
    for _ in range(4):
        assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied
    assert not guard._recovery.ready


def test_sparse_and_missing_ones() -> None:
    model = nn.Module()
    model.register_buffer("graph", torch.eye(3).to_sparse(), persistent=False)
    restore_buffers(model, {"graph": (2 * torch.eye(3)).to_sparse(), "gone": torch.ones(1)})
    assert isinstance(model.graph, Tensor)
    assert torch.equal(model.graph.to_dense(), 2 * torch.eye(3))
