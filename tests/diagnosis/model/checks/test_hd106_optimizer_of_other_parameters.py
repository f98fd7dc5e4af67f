"""Sharding after the optimizer was built is in test_hd111_plain_scaler_with_fsdp1.py."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

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


def test_one_replaced_layer() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, 1)
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


def test_a_head_with_other_outputs() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2] = nn.Linear(8, 3)
    assert codes(hg.doctor(model, optimizer)) == ["HD106"]


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
