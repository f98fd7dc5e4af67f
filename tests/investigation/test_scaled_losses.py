"""What the bus knows of a loss that is made of scaled ones."""

from __future__ import annotations

import pytest
import torch

from halfguard.investigation.bus import BackwardCall, HookBus

SCALE = 4.0


class Calls:
    """Keeps the backward passes that the bus reports."""

    def __init__(self) -> None:
        self.seen: list[BackwardCall] = []

    def on_backward(self, call: BackwardCall) -> None:
        self.seen.append(call)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_loss_is_known_without_its_scale(bus: HookBus, parts: int) -> None:
    calls, weight = Calls(), torch.nn.Parameter(torch.ones(1))
    bus.listen(calls)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaled = [scaler.scale(3 * weight.sum()) for _ in range(parts)]
    sum(scaled[1:], scaled[0]).backward()
    (call,) = calls.seen
    assert call.scaled
    assert call.losses[0].item() / call.divisor == 3.0 * parts


def test_a_loss_with_a_graph_that_is_too_large_is_not_divided(bus: HookBus) -> None:
    calls, weight = Calls(), torch.nn.Parameter(torch.ones(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaled = scaler.scale(weight.sum())  # of another network
    bus.listen(calls)
    loss = weight.sum()
    for _ in range(6000):
        loss = loss + 0
    loss.backward()
    (call,) = calls.seen
    assert call.scaled  # it may be
    assert call.losses[0].item() / call.divisor == scaled.item() / SCALE


def test_a_scaled_loss_is_found_beside_a_large_graph(bus: HookBus) -> None:
    calls, weight = Calls(), torch.nn.Parameter(torch.ones(1))
    bus.listen(calls)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    penalty = weight.sum() * 0
    for _ in range(6000):
        penalty = penalty + 0
    (scaler.scale(2 * weight.sum()) + penalty).backward()
    (call,) = calls.seen
    assert call.losses[0].item() / call.divisor == 2.0
