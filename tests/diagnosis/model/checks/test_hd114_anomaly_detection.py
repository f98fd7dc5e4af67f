from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import codes, cured, found, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("seed")


def overflowing(model: nn.Module) -> Tensor:
    """A loss that is well, whose scaled gradient overflows and, times zero, becomes NaN."""
    with torch.autocast(device_type(), torch.float16):
        output: Tensor = model(torch.ones(4, 4))
        return (output.float() * 100).sum()


def test_detection_aborts_what_the_scaler_would_skip() -> None:
    model, scaler = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)),
        hg.GradScaler(device_type()),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.set_detect_anomaly(True):
        diagnosis = hg.doctor(model, optimizer, scaler=scaler)
        assert codes(diagnosis) == ["HD114"]
        with (
            pytest.warns(UserWarning, match="Error detected"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            scaler.scale(overflowing(model)).backward()
        cured(found(diagnosis, "HD114"))
        assert hg.doctor(model, optimizer, scaler=scaler).ok
        optimizer.zero_grad()
        scaler.scale(overflowing(model)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 32768.0
    assert all(bool((p == 0).all()) for p in model.parameters())


def test_without_a_scaler_it_is_a_tool_like_another() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert hg.doctor(net()).ok
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert hg.doctor(net(), scaler=torch.amp.GradScaler(device_type())).ok
