"""Weights, optimizer state and statistics in 16 bits: HG401 to HG403, HD108."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device", "seed")

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
    finding = found(diagnosis, "HG401")
    assert codes(diagnosis) == ["HG401"]
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
    assert codes(diagnosis) == ["HG401"]  # and not HG403: fused kernels divide in FP32
    assert "fused" in found(diagnosis, "HG401").why

    masters = cured(found(diagnosis, "HG401"), model=model, optimizer=optimizer)["optimizer"]
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
            assert codes(diagnosis) == ["HD101", "HG401"]
            assert found(diagnosis, "HD101").cure == "model.float()"
            cured(found(diagnosis, "HG401"), model=model)
    assert diagnosis.ok
    half_step(model, optimizer, scaler, batch())


class Adapted(nn.Module):
    """A linear layer with a low-rank addition that alone is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, 2, bias=False)
        self.lora_b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x))


def adapted() -> Any:
    model = net()
    return nn.Sequential(*(Adapted(m) if isinstance(m, nn.Linear) else m for m in model))


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def test_fp16_adapters_over_a_frozen_fp16_base() -> None:
    model, scaler = adapted().half(), torch.amp.GradScaler(device_type())
    optimizer = torch.optim.AdamW(trained(model))
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(
            model, optimizer, scaler=scaler, precision="fp16-mixed", loss=loss, batch=batch()
        )
    assert codes(diagnosis) == ["HD101", "HG401", "HG403"]
    assert all(
        one.cure.startswith("halfguard.upcast_trainable(model)") for one in diagnosis.findings
    )
    finding = found(diagnosis, "HG401")
    assert "0.lora_a.weight, 0.lora_b.weight" in finding.message
    with pytest.raises(ValueError, match="unscale FP16"):
        half_step(model, optimizer, scaler, batch())

    cured(finding, model=model)
    assert model[0].base.weight.dtype is torch.float16
    optimizer, scaler = torch.optim.AdamW(trained(model)), torch.amp.GradScaler(device_type())
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(
            model, optimizer, scaler=scaler, precision="fp16-mixed", loss=loss, batch=batch()
        )
    assert diagnosis.findings == ()
    half_step(model, optimizer, scaler, batch())


def test_bf16_adapters_are_named_without_the_scalers_error() -> None:
    model = adapted().bfloat16()
    diagnosis = hg.doctor(model, torch.optim.AdamW(trained(model)))
    assert codes(diagnosis) == ["HG401"]
    assert "Attempting" not in found(diagnosis, "HG401").why


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
    finding = found(examine(optimizer), "HG402")
    assert finding.severity == severity
    assert "2.weight" in finding.message
    assert "about 100% of the updates" in finding.message
    optimizer = cured(finding, optimizer=optimizer)["optimizer"]
    assert "HG402" not in codes(examine(optimizer))
    assert isinstance(optimizer, hg.MasterWeights)
    train(model, optimizer, 50)
    assert not torch.equal(optimizer.masters()[model[2].weight], before.float())


@pytest.mark.on_standin
def test_pure_fp16_needs_masters_and_a_scaler() -> None:
    model = net().half()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters())
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().half())
    assert codes(diagnosis) == ["HG207", "HG402", "HG403"]
    optimizer = cured(found(diagnosis, "HG402"), optimizer=optimizer)["optimizer"]
    scaler = cured(found(diagnosis, "HG207"))["scaler"]
    assert hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch().half()).ok


def test_a_model_alone_is_judged_by_its_trainable_parameters() -> None:
    assert codes(hg.doctor(net().half())) == ["HG402"]
    assert hg.doctor(net().half().requires_grad_(False)).ok


def test_an_optimizer_with_normalised_updates_is_judged_by_its_learning_rate() -> None:
    model = net().bfloat16()
    small = torch.optim.AdamW(model.parameters(), lr=1e-5)
    assert found(hg.doctor(model, small), "HG402").severity == "warning"
    large = torch.optim.AdamW(model.parameters(), lr=1e-2)
    finding = found(hg.doctor(model, large), "HG402")
    assert finding.severity == "note"
    assert "about 0% of the updates" in finding.message
    torch.optim.lr_scheduler.LambdaLR(large, lambda step: step / 100)  # its warmup begins at 0
    assert found(hg.doctor(model, large), "HG402").severity == "note"


def test_updates_of_sgd_are_measured_and_without_a_loss_they_are_not_known() -> None:
    model = net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = [parameter.grad for parameter in model.parameters()]
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().half())
    assert [parameter.grad for parameter in model.parameters()] == gradients
    assert [(one.code, one.severity) for one in diagnosis.findings] == [
        ("HG207", "note"),
        ("HG402", "note"),
    ]
    assert diagnosis.ok
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer, 1)
    assert not any(map(torch.equal, model.parameters(), before))

    unknown = found(hg.doctor(model, optimizer), "HG402")
    assert unknown.severity == "note"
    assert "Pass loss and batch" in unknown.message


def test_an_optimizer_that_is_not_known_is_named() -> None:
    class Muon(torch.optim.Optimizer):
        pass

    model = net().half()
    optimizer = Muon(model.parameters(), {"lr": 1e-5})
    both: dict[str, Any] = {"loss": loss, "batch": batch().half()}
    for given in ({}, both):
        finding = found(hg.doctor(model, optimizer, **given), "HG402")
        assert finding.severity == "note"
        assert "unknown how many updates are lost with Muon" in finding.message


def after_a_step_without_a_gradient(model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether weights are finite after a step whose gradients are all zero, as a dead unit's are."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_nan_after_the_first_step(kind: Callable[..., Any]) -> None:
    model = net().half()
    optimizer = kind(model.parameters())
    diagnosis = hg.doctor(model, optimizer)
    assert codes(diagnosis) == ["HG402", "HG403"]
    finding = found(diagnosis, "HG403")
    assert "eps=1e-08 rounds to 0 in float16" in finding.message
    assert "0.weight" in finding.message
    assert not after_a_step_without_a_gradient(model, optimizer)

    model = net().half()
    optimizer = cured(finding, optimizer=kind(model.parameters()))["optimizer"]
    assert hg.doctor(model, optimizer).ok
    assert after_a_step_without_a_gradient(model, optimizer)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float16, {"eps": 1e-4}),
        (torch.float16, {"fused": True}),
    ],
)
def test_an_eps_that_survives(dtype: torch.dtype, options: dict[str, Any]) -> None:
    model = net().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    assert "HG403" not in codes(hg.doctor(model, optimizer))
    assert after_a_step_without_a_gradient(model, optimizer)


def test_half_running_statistics_overflow() -> None:
    model = net(batchnorm=True).half()
    model[1](torch.linspace(-60000, 60000, 32).reshape(4, 8).half())
    assert model[1].running_var.isinf().any()

    model = net(batchnorm=True).half().requires_grad_(False)
    diagnosis = hg.doctor(model)
    assert codes(diagnosis) == ["HD108"]
    finding = found(diagnosis, "HD108")
    assert finding.subject == "1"
    cured(finding, model=model)
    assert hg.doctor(model, batch=batch().half()).ok
    model[1](torch.linspace(-60000, 60000, 32).reshape(4, 8).half())
    assert model[1].running_var.isfinite().all()


def test_float32_and_untracked_statistics_are_fine() -> None:
    untracked = torch.nn.BatchNorm1d(8, track_running_stats=False).half().requires_grad_(False)
    assert hg.doctor(net(batchnorm=True)).ok
    assert hg.doctor(untracked).ok


def test_statistics_that_do_not_move_are_fine() -> None:
    model = net(batchnorm=True).half().requires_grad_(False)
    model[1].eval()
    before = model[1].running_var.clone()
    model(batch().half())
    assert torch.equal(model[1].running_var, before)
    assert hg.doctor(model).ok


def test_a_model_that_is_still_in_eval_will_move_them() -> None:
    model = net(batchnorm=True).half().requires_grad_(False).eval()
    assert codes(hg.doctor(model)) == ["HD108"]
    assert codes(hg.doctor(model, batch=batch().half())) == ["HD108"]
    assert not model.training
    cured(found(hg.doctor(model), "HD108"), model=model)
    assert hg.doctor(model).ok
