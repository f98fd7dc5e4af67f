"""Tensors that nothing trains: HD106, HD107, HG404."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("seed")


def test_parameters_replaced_after_the_optimizer_was_built() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    scaler = torch.amp.GradScaler(device_type())
    diagnosis = hg.doctor(model, optimizer, scaler=scaler)
    assert codes(diagnosis) == ["HD106"]
    finding = found(diagnosis, "HD106")
    assert "4 of the 4" in finding.message
    assert "0.weight, 0.bias, 2.weight and 1 more" in finding.message
    with pytest.raises(AssertionError, match="No inf checks were recorded"):
        half_step(model, optimizer, scaler, batch())

    optimizer = cured(finding, model=model)["optimizer"]
    assert hg.doctor(model, optimizer, scaler=scaler).findings == ()
    half_step(model, optimizer, torch.amp.GradScaler(device_type()), batch())


@pytest.mark.parametrize("outputs", [1, 3])
def test_one_replaced_layer(outputs: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, outputs)
    finding = found(hg.doctor(model, optimizer), "HD106")
    assert "2 of the 4" in finding.message
    assert "2.weight, 2.bias" in finding.message


def test_what_is_meant_is_not_reported() -> None:
    model, criterion = net(), nn.Linear(1, 1)
    both = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    head_only = torch.optim.SGD(model[2].parameters(), lr=0.1)
    two = [torch.optim.SGD(model[0].parameters(), lr=0.1), head_only]
    assert hg.doctor(model, both).ok  # a loss with parameters of its own
    assert hg.doctor(model, head_only).ok
    assert hg.doctor(model, two).ok


def test_a_part_of_the_model_is_left_out_beside_a_parameter_of_the_loss() -> None:
    model, temperature = net(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.AdamW([*model[2].parameters(), temperature])
    assert hg.doctor(model, optimizer).ok


def test_a_stranger_that_the_loss_uses_was_not_replaced() -> None:
    model, proxies = net(), nn.Parameter(torch.ones(8, 4))  # of the shape of 0.weight
    optimizer = torch.optim.AdamW([*model[2].parameters(), proxies])
    diagnosis = hg.doctor(
        model, optimizer, loss=lambda m, x: (m(x) + x @ proxies.T).mean(), batch=batch()
    )
    assert diagnosis.findings == ()
    assert codes(hg.doctor(model, optimizer, loss=loss, batch=batch())) == ["HD106"]


class Own(torch.optim.SGD):
    """An optimizer that torch does not have."""


class Adamax(torch.optim.SGD):
    """An optimizer of a name that torch has for another."""


@pytest.mark.parametrize("kind", [Own, Adamax, torch.optim.SGD])
@pytest.mark.parametrize("masters", [False, True])
def test_the_cure_builds_an_optimizer_of_the_same_class(
    kind: type[torch.optim.Optimizer], masters: bool
) -> None:
    old, model = net().half(), net().half()
    optimizer = kind(old.parameters(), lr=0.1)  # type: ignore[call-arg]
    stale = hg.MasterWeights(optimizer) if masters else optimizer
    finding = found(hg.doctor(model, stale), "HD106")
    fresh = cured(finding, model=model, Own=Own, Adamax=Adamax)["optimizer"]
    assert type(fresh) is type(stale)
    assert type(getattr(fresh, "inner", fresh)) is kind
    assert "HD106" not in codes(hg.doctor(model, fresh))


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


def test_an_output_is_not_a_loss() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert hg.doctor(model, optimizer, loss=lambda m, x: m(x).detach(), batch=batch()).ok


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


def trainable() -> Any:
    return torch.ones(3, requires_grad=True)


@pytest.mark.parametrize(
    "held",
    [
        trainable,
        lambda: [trainable()],
        lambda: {"a": trainable()},
        lambda: [nn.Parameter(torch.ones(3))],
    ],
    ids=["tensor", "list", "dict", "parameters in a list"],
)
def test_a_tensor_that_no_optimizer_trains(held: Any) -> None:
    model = net()
    model[1].preference = held()
    optimizer = SGD(model.parameters())
    finding = found(hg.doctor(model, optimizer), "HG404")
    assert (finding.subject, finding.severity) == ("1.preference", "error")
    assert "No optimizer trains it" in finding.why
    cured(finding, model=model)
    assert any("preference" in name for name, _ in model.named_parameters())
    assert codes(hg.doctor(model, SGD(model.parameters()))) == []


def test_a_tensor_that_the_optimizer_was_given_is_still_not_saved() -> None:
    model = net()
    model.scale = trainable()
    finding = found(hg.doctor(model, SGD([*model.parameters(), model.scale])), "HG404")
    assert finding.severity == "warning"
    assert "scale" not in model.state_dict()


def test_tensors_that_are_not_trained_are_fine() -> None:
    model = net()
    model.constant, model.table = torch.ones(3), [torch.zeros(2)]
    model.last = model[0].weight.sum()  # the result of an operation, with a graph
    model.shared = model[0].weight  # a parameter, held twice
    assert codes(hg.doctor(model, SGD(model.parameters()))) == []
