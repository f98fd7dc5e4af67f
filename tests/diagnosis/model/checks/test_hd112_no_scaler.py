from __future__ import annotations

import pytest
import torch

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")


def gradients(scaler: torch.amp.GradScaler) -> float:
    """The largest gradient of the first layer for a loss that is small, in units of that loss."""
    model, tiny = net(), 1e-8
    with torch.autocast(device_type(), torch.float16):
        value = loss(model, batch()) * tiny
    scaler.scale(value).backward()
    assert model[0].weight.grad is not None
    return float(model[0].weight.grad.abs().max())


@pytest.mark.on_standin
def test_small_gradients_vanish_without_a_scale() -> None:
    assert gradients(torch.amp.GradScaler(device_type(), enabled=False)) == 0.0
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch())
        assert codes(diagnosis) == ["HD112"]
        scaler = cured(found(diagnosis, "HD112"))["scaler"]
        assert hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch()).ok
    assert gradients(scaler) > 0.0


@pytest.mark.parametrize(("size", "severity"), [(1e-8, "error"), (1.0, "note")])
def test_lost_gradients_are_measured(size: float, severity: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(
            model, optimizer, loss=lambda model, x: size * loss(model, x), batch=batch()
        )
    finding = found(diagnosis, "HD112")
    assert finding.severity == severity
    assert (" 0.0%" in finding.message) == (severity == "note")


def test_without_a_loss_autocast_needs_a_scaler() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        assert found(hg.doctor(model, optimizer, batch=batch()), "HD112").severity == "error"


def test_the_request_is_enough_where_nothing_was_run() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert codes(hg.doctor(model, optimizer, precision="fp16-mixed")) == ["HD112"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_precisions_need_none(dtype: torch.dtype) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), dtype, enabled=dtype is not torch.float32):
        assert hg.doctor(model, optimizer, loss=loss, batch=batch()).ok


def test_inference_needs_none() -> None:
    with torch.autocast(device_type(), torch.float16):
        assert hg.doctor(net(), batch=batch()).ok
