"""Tensors in 16 bits that are written in every step, and do not move."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from halfguard.investigation.bus import HookBus
from halfguard.investigation.lost_updates import LostIncrements
from halfguard.investigation.passes import Made, Misused

Update = Callable[[Tensor, Tensor], object]


def run(update: Update, *, dtype: torch.dtype = torch.bfloat16) -> list[Misused]:
    """Return what is told of 100 steps, of which four are looked at; the weights move from 1 to 2.8."""
    bus = HookBus()
    detector = LostIncrements(bus)
    kept = torch.ones(8, dtype=dtype)
    for bus.backward in range(100):
        weights = torch.full((8,), 1 + 0.018 * (bus.backward + 1))
        if bus.backward in (50, 75, 98, 99):
            detector.begin()
        with torch.no_grad():
            update(kept, weights)
        detector.on_backward(None)
    return list(detector.found(Made(), ""))


def average(kept: Tensor, weights: Tensor) -> None:
    kept.mul_(0.998).add_(weights.to(kept.dtype), alpha=0.002)


def average_by_copy(kept: Tensor, weights: Tensor) -> None:
    kept.copy_(0.998 * kept + 0.002 * weights.to(kept.dtype))


def average_of_views(kept: Tensor, weights: Tensor) -> None:
    kept.data.lerp_(weights.to(kept.dtype), 0.002)


@pytest.mark.parametrize("update", [average, average_by_copy, average_of_views])
def test_an_average_that_stays_is_told(update: Update) -> None:
    (told,) = run(update)
    assert (told.kind, told.code, told.dtype) == ("lost increments", "HG619", "bfloat16")
    assert "8 of 8 values in bfloat16 did not change in 49 backward passes" in told.sentence
    assert told.place is not None
    assert told.place[0] == __file__


@pytest.mark.parametrize(
    "update",
    [
        lambda kept, weights: kept.lerp_(weights.to(kept.dtype), 0.1),  # it moves
        lambda kept, weights: kept.copy_(weights),  # FP32 numbers are kept elsewhere
        lambda kept, weights: kept.add_(3e-3 * torch.sin(777 * weights)),  # to and fro
        lambda kept, weights: kept.mul_(1.0),  # nothing is added
    ],
    ids=["moves", "copy", "noise", "same"],
)
def test_other_writes_are_not_told(update: Update) -> None:
    assert run(update) == []


def test_random_numbers_are_drawn_once() -> None:
    drawn = []
    for is_on in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            detector, kept = LostIncrements(HookBus()), torch.ones(8, dtype=torch.bfloat16)
            if is_on:
                detector.begin()
            with torch.no_grad():
                kept.normal_().add_(torch.rand_like(kept))
            detector.on_backward(None)
            drawn.append((kept, torch.rand(1)))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_an_average_in_fp32_is_not_told() -> None:
    assert run(average, dtype=torch.float32) == []
