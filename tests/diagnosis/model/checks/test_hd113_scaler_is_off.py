from __future__ import annotations

import pytest
import torch

import halfguard as hg
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")


def examined(scaler: torch.amp.GradScaler, dtype: torch.dtype = torch.float16) -> Diagnosis:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), dtype):
        return hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch())


@pytest.mark.on_standin
@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA the scaler stays on")
def test_a_scaler_for_cuda_where_there_is_none() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.amp.GradScaler()
    assert float(scaler.scale(torch.ones(()))) == 1.0
    diagnosis = examined(scaler)
    assert codes(diagnosis) == ["HD113"]
    finding = found(diagnosis, "HD113")
    assert "created for CUDA" in finding.why
    mended = cured(finding)["scaler"]
    assert float(mended.scale(torch.ones(()))) == 65536.0
    assert examined(mended).findings == ()


def test_switched_off_by_hand() -> None:
    diagnosis = examined(torch.amp.GradScaler(device_type(), enabled=False))
    assert "enabled=False" in found(diagnosis, "HD113").why


def test_bf16_may_have_one_that_is_off() -> None:
    assert examined(torch.amp.GradScaler(device_type(), enabled=False), torch.bfloat16).ok
