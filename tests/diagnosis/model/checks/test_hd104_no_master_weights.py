from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net

pytestmark = pytest.mark.usefixtures("device")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch().to(dtype)).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("dtype", "severity"), [(torch.float16, "error"), (torch.bfloat16, "warning")]
)
def test_half_weights_lose_updates_and_masters_keep_them(dtype: torch.dtype, severity: str) -> None:
    model = net().to(dtype)
    nn.init.constant_(model[2].weight, 1.0)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model[2].parameters(), lr=1e-5)
    before = model[2].weight.detach().clone()
    train(model, optimizer, 50)
    assert torch.equal(model[2].weight, before)

    examine = functools.partial(hg.doctor, model, loss=loss, batch=batch().to(dtype))
    finding = found(examine(optimizer), "HD104")
    assert finding.severity == severity
    assert "2.weight" in finding.message
    assert "about 100% of the updates" in finding.message
    optimizer = cured(finding, optimizer=optimizer)["optimizer"]
    assert "HD104" not in codes(examine(optimizer))
    assert isinstance(optimizer, hg.MasterWeights)
    train(model, optimizer, 50)
    assert not torch.equal(optimizer.masters()[model[2].weight], before.float())


@pytest.mark.on_standin
def test_pure_fp16_needs_masters_and_a_scaler() -> None:
    model = net().half()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().half())
    assert codes(diagnosis) == ["HD104", "HD105", "HD112"]
    optimizer = cured(found(diagnosis, "HD104"), optimizer=optimizer)["optimizer"]
    scaler = cured(found(diagnosis, "HD112"))["scaler"]
    assert hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch().half()).ok


def test_a_model_alone_is_judged_by_its_trainable_parameters() -> None:
    assert codes(hg.doctor(net().half())) == ["HD104"]
    assert hg.doctor(net().half().requires_grad_(False)).ok


def test_an_optimizer_with_normalised_updates_is_judged_by_its_learning_rate() -> None:
    model = net().bfloat16()
    small = torch.optim.AdamW(model.parameters(), lr=1e-5)
    assert found(hg.doctor(model, small), "HD104").severity == "warning"
    large = torch.optim.AdamW(model.parameters(), lr=1e-2)
    finding = found(hg.doctor(model, large), "HD104")
    assert finding.severity == "note"
    assert "about 0% of the updates" in finding.message
    torch.optim.lr_scheduler.LambdaLR(large, lambda step: step / 100)  # its warmup begins at 0
    assert found(hg.doctor(model, large), "HD104").severity == "note"


def test_updates_of_sgd_are_measured_and_without_a_loss_they_are_not_known() -> None:
    model = net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = [parameter.grad for parameter in model.parameters()]
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().half())
    assert [parameter.grad for parameter in model.parameters()] == gradients
    assert [(one.code, one.severity) for one in diagnosis.findings] == [
        ("HD104", "note"),
        ("HD112", "note"),
    ]
    assert diagnosis.ok
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer, 1)
    assert not any(map(torch.equal, model.parameters(), before))

    unknown = found(hg.doctor(model, optimizer), "HD104")
    assert unknown.severity == "note"
    assert "pass loss and batch" in unknown.message


def test_an_optimizer_that_is_not_known_is_named() -> None:
    class Muon(torch.optim.Optimizer):
        pass

    model = net().half()
    optimizer = Muon(model.parameters(), {"lr": 1e-5})
    both: dict[str, Any] = {"loss": loss, "batch": batch().half()}
    for given in ({}, both):
        finding = found(hg.doctor(model, optimizer, **given), "HD104")
        assert finding.severity == "note"
        assert "is not known for Muon" in finding.message
