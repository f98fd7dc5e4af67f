from __future__ import annotations

import pytest
import torch

import halfguard as hg
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device")

SGD = torch.optim.SGD


def examined(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Diagnosis:
    scaler = torch.amp.GradScaler(device_type())
    with torch.autocast(device_type(), torch.float16):
        return hg.doctor(
            model, optimizer, scaler=scaler, precision="fp16-weights", loss=loss, batch=batch()
        )


def test_the_scaler_refuses_and_doctor_says_so_before() -> None:
    model = net().half()
    optimizer: torch.optim.Optimizer = SGD(model.parameters(), lr=0.1)
    diagnosis = examined(model, optimizer)
    finding = found(diagnosis, "HD102")
    assert codes(diagnosis) == ["HD102"]
    assert (
        "4 trainable parameters are float16: 0.weight, 0.bias, 2.weight and 1 more"
        in finding.message
    )
    with pytest.raises(ValueError, match=r"Attempting to unscale FP16 gradients\.") as raised:
        half_step(model, optimizer, torch.amp.GradScaler(device_type()), batch())
    assert str(raised.value) in finding.why

    optimizer = cured(finding, model=model, optimizer=optimizer)["optimizer"]
    assert examined(model, optimizer).findings == ()
    half_step(model, optimizer, torch.amp.GradScaler(device_type()), batch())


@pytest.mark.on_standin
def test_fused_escapes_the_error_and_moves_nothing() -> None:
    model = net().half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0, fused=True)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(20):
        half_step(model, optimizer, torch.amp.GradScaler(device_type(), init_scale=64.0), batch())
    large = [
        (p.detach() == b)[b.abs() > 0.05].all()
        for p, b in zip(model.parameters(), before, strict=True)
    ]
    assert all(large)
    diagnosis = examined(model, optimizer)
    assert codes(diagnosis) == ["HD102"]  # and not HD105: fused kernels divide in FP32
    assert "fused" in found(diagnosis, "HD102").why

    masters = cured(found(diagnosis, "HD102"), model=model, optimizer=optimizer)["optimizer"]
    assert examined(model, masters).ok
    start = [m.detach().clone() for m in masters.master_parameters()]
    for _ in range(20):
        half_step(model, masters, torch.amp.GradScaler(device_type(), init_scale=64.0), batch())
    moved = [bool((m != s).any()) for m, s in zip(masters.master_parameters(), start, strict=True)]
    assert any(moved)


def test_looking_at_master_weights_moves_no_gradient() -> None:
    model = net().half()
    optimizer = hg.MasterWeights(SGD(model.parameters(), lr=0.1))
    loss(model, batch().half()).backward()
    assert hg.doctor(model, optimizer, scaler=torch.amp.GradScaler(device_type())).ok
    assert all(p.grad is not None for p in model.parameters())
    assert all(pair.master.grad is None for pair in optimizer._pairs())


def test_where_mixed_precision_was_asked_for_the_weights_go_back_to_fp32() -> None:
    model, scaler = net().half(), torch.amp.GradScaler(device_type())
    optimizer = SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        for _ in range(2):
            diagnosis = hg.doctor(
                model, optimizer, scaler=scaler, precision="fp16-mixed", loss=loss, batch=batch()
            )
            if diagnosis.ok:
                break
            assert codes(diagnosis) == ["HD101", "HD102"]
            assert found(diagnosis, "HD101").cure == "model.float()"
            cured(found(diagnosis, "HD102"), model=model)
    assert diagnosis.ok
    half_step(model, optimizer, scaler, batch())
