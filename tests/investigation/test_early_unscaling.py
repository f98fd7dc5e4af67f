"""Accumulation loops that unscale in the wrong micro-batch, and those that unscale in the right one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from halfguard.investigation.bus import HookBus
from halfguard.investigation.passes import Made, Misused
from halfguard.investigation.silent_faults import EarlyUnscaling

EVERY = 4
Loop = Callable[[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler], None]


def loop(unscales_at: int, *, zeroes: bool = True) -> Loop:
    def run(
        model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
    ) -> None:
        for index in range(3 * EVERY):
            scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
            if index % EVERY == unscales_at:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if index % EVERY == EVERY - 1:
                scaler.step(optimizer)
                scaler.update()
                if zeroes:
                    optimizer.zero_grad()

    return run


def bad_steps_are_dropped(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    for _ in range(8):
        scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
        scaler.unscale_(optimizer)
        model.zero_grad()  # dropped
        scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def find(bus: HookBus, run: Loop) -> list[Misused]:
    detector = EarlyUnscaling(bus)
    bus.listen(detector)
    with torch.random.fork_rng():
        model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run(model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0))
    return list(detector.found(Made(), ""))


@pytest.mark.parametrize("zeroes", [True, False])
def test_scaled_gradients_that_are_added_to_unscaled_ones_are_found(
    bus: HookBus, zeroes: bool
) -> None:
    (found,) = find(bus, loop(0, zeroes=zeroes))
    assert (found.kind, found.code) == ("unscaled early", "HG202")
    assert f"{3 * (EVERY - 1)} later backward passes" in found.sentence
    assert found.place is not None
    assert "scaler.unscale_(optimizer)" in found.sentence


@pytest.mark.parametrize("run", [loop(EVERY - 1), loop(-1), bad_steps_are_dropped])
def test_gradients_that_are_unscaled_last_are_right(bus: HookBus, run: Loop) -> None:
    assert find(bus, run) == []
