"""Loops that train less than they say, and the same loops without the fault."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from halfguard.investigation.bus import HookBus
from halfguard.investigation.detectors import Detector
from halfguard.investigation.passes import Made
from halfguard.investigation.silent_faults import (
    DividedTwice,
    HalfMoments,
    StaleCasts,
    ZeroGradients,
)


def sentences(detector: Detector) -> list[str]:
    return [one.sentence for one in detector.found(Made(), "")]


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        model(torch.ones(2, 4)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def region(**options: bool) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def test_steps_inside_of_one_region_use_stale_casts(bus: HookBus) -> None:
    stale = StaleCasts(bus)
    bus.listen(stale)
    model, optimizer = network()
    with region():
        steps(model, optimizer, 3)
    (text,) = sentences(stale)
    assert "3 optimizer steps ran inside a single autocast region" in text


def test_a_decorated_function_is_named_by_its_decorator(bus: HookBus) -> None:
    stale = StaleCasts(bus)
    bus.listen(stale)
    model, optimizer = network()

    @region()
    def epoch() -> None:
        steps(model, optimizer, 3)

    epoch()
    (text,) = sentences(stale)
    assert "return torch.autocast(" in text  # where the decorator is made, not where it is used


def test_a_region_for_each_step_or_without_a_cache_is_right(bus: HookBus) -> None:
    stale = StaleCasts(bus)
    bus.listen(stale)
    model, optimizer = network()
    for _ in range(4):
        with region():
            steps(model, optimizer, 1)
    with region(cache_enabled=False):
        steps(model, optimizer, 4)
    with region():
        for _ in range(4):
            steps(model, optimizer, 1)
            torch.clear_autocast_cache()
    assert not sentences(stale)


@pytest.mark.parametrize(
    ("times", "micro_batches", "told"), [(2, 4, True), (1, 4, False), (2, 2, False)]
)
def test_a_loss_is_divided_twice_by_its_micro_batches(
    bus: HookBus, times: int, micro_batches: int, told: bool
) -> None:
    detector = DividedTwice(bus)
    bus.listen(detector)
    model, optimizer = network()
    for _ in range(3):
        for _ in range(micro_batches):
            loss: Tensor = model(torch.ones(2, 4)).mean()
            for _ in range(times):
                loss = loss / 4
            loss.backward()
        optimizer.step()
    assert bool(sentences(detector)) is told


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_moments_that_are_zero_in_half_are_told_when_they_are_loaded(
    bus: HookBus, dtype: torch.dtype
) -> None:
    detector = HalfMoments(bus)
    bus.listen(detector)
    parameter = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.Adam([parameter])
    (parameter * 1e-3).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        state["state"][0][name] = state["state"][0][name].to(dtype)
    optimizer.load_state_dict(state_dict=state)
    assert bool(sentences(detector)) is (dtype == torch.float16)


@pytest.mark.parametrize(("factor", "told"), [(0.0, 1), (1.0, 0)])
def test_gradients_that_are_0_in_every_backward_pass_are_told(
    bus: HookBus, factor: float, told: int
) -> None:
    zeros = ZeroGradients(bus)
    bus.listen(zeros)
    model, _kept = network()
    for _ in range(3):
        (model(torch.ones(2, 4)).sum() * factor).backward()
        model.zero_grad()
    found = sentences(zeros)
    assert len(found) == told
    assert all(
        "exactly 0 in all 3 backward passes, and so was every loss" in text for text in found
    )


def test_gradients_that_are_0_at_first_are_not_told(bus: HookBus) -> None:
    zeros = ZeroGradients(bus)
    bus.listen(zeros)
    model, _kept = network()
    for step in range(5):
        (model(torch.ones(2, 4)).sum() * float(step == 4)).backward()
        model.zero_grad()
    assert sentences(zeros) == []
