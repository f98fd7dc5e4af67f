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
