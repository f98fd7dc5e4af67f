from __future__ import annotations

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

    diagnosis = hg.doctor(model, optimizer)
    assert codes(diagnosis) == ["HD104"]
    finding = found(diagnosis, "HD104")
    assert finding.severity == severity
    assert "2.weight" in finding.message
    optimizer = cured(finding, optimizer=optimizer)["optimizer"]
    assert hg.doctor(model, optimizer).ok
    assert isinstance(optimizer, hg.MasterWeights)
    train(model, optimizer, 50)
    assert not torch.equal(optimizer.masters()[model[2].weight], before.float())


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
