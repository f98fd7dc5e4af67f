from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import halfguard as hg
from tests.diagnosis.model.checks.helper import codes, cured, found, net


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
    finding = found(hg.doctor(model, optimizer), "HD119")
    assert (finding.subject, finding.severity) == ("1.preference", "error")
    assert "No optimizer trains it" in finding.why
    cured(finding, model=model)
    assert any("preference" in name for name, _ in model.named_parameters())
    assert codes(hg.doctor(model, SGD(model.parameters()))) == []


def test_a_tensor_that_the_optimizer_was_given_is_still_not_saved() -> None:
    model = net()
    model.scale = trainable()
    finding = found(hg.doctor(model, SGD([*model.parameters(), model.scale])), "HD119")
    assert finding.severity == "warning"
    assert "scale" not in model.state_dict()


def test_tensors_that_are_not_trained_are_fine() -> None:
    model = net()
    model.constant, model.table = torch.ones(3), [torch.zeros(2)]
    model.last = model[0].weight.sum()  # the result of an operation, with a graph
    model.shared = model[0].weight  # a parameter, held twice
    assert codes(hg.doctor(model, SGD(model.parameters()))) == []
