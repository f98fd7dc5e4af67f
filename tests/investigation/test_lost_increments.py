"""Tensors in 16 bits that are written in every step, and do not move."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from halfguard.investigation.bus import HookBus
from halfguard.investigation.lost_increments import LostIncrements
from halfguard.investigation.passes import Made, Misused

Update = Callable[[Tensor, Tensor], Tensor]


def run(update: Update, *, dtype: torch.dtype = torch.bfloat16) -> list[Misused]:
    """Return what is told of 100 steps; the weights move from 1 to 2.8."""
    bus = HookBus()
    detector = LostIncrements(bus)
    kept = torch.ones(8, dtype=dtype)
    for step in range(100):
        weights = torch.full((8,), 1 + 0.018 * (step + 1))
        with detector, torch.no_grad():
            kept = update(kept, weights)
    return list(detector.found(Made(), ""))


def average(kept: Tensor, weights: Tensor) -> Tensor:
    return kept.mul_(0.998).add_(weights.to(kept.dtype), alpha=0.002)


def average_by_copy(kept: Tensor, weights: Tensor) -> Tensor:
    return kept.copy_(0.998 * kept + 0.002 * weights.to(kept.dtype))


def average_of_views(kept: Tensor, weights: Tensor) -> Tensor:
    kept.data.lerp_(weights.to(kept.dtype), 0.002)
    return kept


def average_anew(kept: Tensor, weights: Tensor) -> Tensor:
    return kept * 0.998 + weights.to(kept.dtype) * 0.002


def average_in_a_list(kept: Tensor, weights: Tensor) -> Tensor:
    torch._foreach_lerp_([kept], [weights.to(kept.dtype)], 0.002)
    return kept


def count_elements(kept: Tensor, _weights: Tensor) -> Tensor:
    for index in [*range(8)] * 8:
        kept[index] += 1
    return kept


def count_selected(kept: Tensor, _weights: Tensor) -> Tensor:
    for _ in range(8):
        kept[torch.arange(8)] += 1
    return kept


AVERAGES = [average, average_by_copy, average_of_views, average_anew, average_in_a_list]


@pytest.mark.parametrize("update", [*AVERAGES, count_elements, count_selected])
def test_an_average_that_stays_is_told(update: Update) -> None:
    (told,) = run(update)
    assert (told.kind, told.code, told.dtype) == ("lost increments", "HG619", "bfloat16")
    assert "8 of 8 values in bfloat16 stop changing" in told.sentence
    assert "for example, a value is " in told.sentence
    assert told.place is not None
    assert told.place[0] == __file__


def test_a_count_that_stops_is_told_with_its_number_in_fp32() -> None:
    detector, kept = LostIncrements(HookBus()), torch.zeros(1, dtype=torch.float16)
    with detector:
        for _ in range(2500):
            kept += 1
    (told,) = detector.found(Made(), "")
    assert "A value in float16 stops changing" in told.sentence
    assert "it is 2048, and would be 2500 in FP32. Keep it in FP32: " in told.sentence
    assert not told.unsure


def test_a_weight_that_the_script_updates_is_told_only_if_fp32_learns_more() -> None:
    bus = HookBus()
    detector, weight = LostIncrements(bus), torch.ones(4, dtype=torch.float16, requires_grad=True)
    bus.install()
    optimizer = torch.optim.SGD([weight])
    bus.remove()
    with detector, torch.no_grad():
        for _ in range(400):
            weight -= 1e-4
    (told,) = detector.found(Made(), "")
    assert told.unsure
    assert optimizer.param_groups


def test_a_count_that_one_call_adds_up_is_told_only_if_fp32_ends_better() -> None:
    detector, places = LostIncrements(HookBus()), torch.zeros(1000, dtype=torch.long)
    with detector:
        torch.zeros(4, dtype=torch.bfloat16).index_add_(
            0, places, torch.ones(1000, dtype=torch.bfloat16)
        )
    (told,) = detector.found(Made(), "")
    assert " is 256, and would be 1000 in FP32" in told.sentence
    assert told.unsure


def test_what_begins_anew_is_not_told() -> None:
    detector, kept = LostIncrements(HookBus()), torch.zeros(1, dtype=torch.bfloat16)
    with detector:
        for _ in range(10):
            kept.zero_()
            for _ in range(250):
                kept += 1 if kept < 250 else 0
    assert list(detector.found(Made(), "")) == []


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
            with detector if is_on else nullcontext(), torch.no_grad():
                kept.normal_().add_(torch.rand_like(kept))
            drawn.append((kept, torch.rand(1)))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_an_average_in_fp32_is_not_told() -> None:
    assert run(average, dtype=torch.float32) == []
