from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.doctor.model.checks.helper import batch, codes, found, loss, net


def rebuilt(model: nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(loss(model, x).item(), requires_grad=True)


def detached(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return {"loss": loss(model, x).detach()}


@pytest.mark.parametrize("broken", [rebuilt, detached])
def test_a_loss_that_is_only_a_number(broken: Callable[[nn.Module, Tensor], Any]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diagnosis = hg.doctor(model, optimizer, loss=broken, batch=batch())
    assert codes(diagnosis) == ["HD107"]
    assert found(diagnosis, "HD107").severity == "error"
    assert hg.doctor(model, optimizer, loss=loss, batch=batch()).ok  # returns the loss itself


def test_the_scaler_complains_of_it_only_later() -> None:
    model, scaler = net(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(rebuilt(model, batch())).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer)


def test_an_output_is_not_a_loss() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert hg.doctor(model, optimizer, loss=lambda m, x: m(x).detach(), batch=batch()).ok
