from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support.devices import device_type


def rebuilt(model: nn.Module, x: Tensor) -> Tensor:
    return torch.tensor(loss(model, x).item(), requires_grad=True)


def detached(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return {"loss": loss(model, x).detach()}


def with_extras(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, int]]:
    return loss(model, x).detach(), {"correct": 1}


def rebuilt_and_weighted(model: nn.Module, x: Tensor) -> Tensor:
    return rebuilt(model, x) * 0.5


@pytest.mark.parametrize("broken", [rebuilt, detached, with_extras, rebuilt_and_weighted])
def test_a_loss_that_is_only_a_number(broken: Callable[[nn.Module, Tensor], Any]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diagnosis = hg.doctor(model, optimizer, loss=broken, batch=batch())
    assert codes(diagnosis) == ["HD107"]
    assert found(diagnosis, "HD107").severity == "error"
    assert hg.doctor(model, optimizer, loss=loss, batch=batch()).ok  # returns the loss itself


def test_the_scaler_complains_of_it_only_later() -> None:
    model, scaler = net(), torch.amp.GradScaler(device_type())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(rebuilt(model, batch())).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        scaler.step(optimizer)


def test_an_output_is_not_a_loss() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert hg.doctor(model, optimizer, loss=lambda m, x: m(x).detach(), batch=batch()).ok


def test_a_graph_that_leads_to_no_parameter_gives_no_gradient() -> None:
    model = net()
    rebuilt_and_weighted(model, batch()).backward()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_everything_frozen_is_said_as_such() -> None:
    model = net().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch())
    assert codes(diagnosis) == ["HD107"]
    finding = found(diagnosis, "HD107")
    assert "all 4 parameters in the optimizer are frozen" in finding.message
    assert "detached" not in finding.why
    cured(finding, model=model)
    assert hg.doctor(model, optimizer, loss=loss, batch=batch()).ok


class Checkpointed(nn.Module):
    """A model that is one reentrant checkpoint, behind which no parameter can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("masters", [False, True])
def test_graphs_that_are_well(masters: bool) -> None:
    def and_backward(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        value = loss(model, x)
        value.backward()
        return value, x

    for model in (net(), Checkpointed()):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device_type())
        if masters:
            optimizer = hg.MasterWeights(torch.optim.SGD(model.half().parameters(), lr=0.1))
        x = batch().half() if masters else batch()
        for function in (loss, and_backward):
            assert hg.doctor(model, optimizer, scaler=scaler, loss=function, batch=x).findings == ()


def test_a_tensor_that_is_optimized_without_being_a_parameter() -> None:
    model, prompt = net().requires_grad_(False), torch.zeros(4, 4, requires_grad=True)
    optimizer = torch.optim.SGD([prompt], lr=0.1)
    assert hg.doctor(model, optimizer, loss=lambda m, x: loss(m, x + prompt), batch=batch()).ok


def without_gradients(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return loss(model, x)


def reentrant(model: nn.Module, x: Tensor) -> Any:
    return checkpoint(loss, model, x, use_reentrant=True)


@pytest.mark.parametrize("function", [without_gradients, reentrant])
def test_a_forward_pass_without_a_graph_is_not_blamed_on_the_loss_alone(function: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finding = found(hg.doctor(model, optimizer, loss=function, batch=batch()), "HD107")
    for cause in ("use_reentrant=False", "no_grad"):
        assert cause in finding.cure
    assert not finding.cure.startswith("return loss")
    blamed = found(hg.doctor(model, optimizer, loss=detached, batch=batch()), "HD107")
    assert blamed.cure.startswith("return loss")
