from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("seed")


class Adapted(nn.Module):
    """A linear layer with a low-rank addition that alone is trained."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, 2, bias=False)
        self.lora_b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + self.lora_b(self.lora_a(x))
        return output


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
    assert codes(diagnosis) == ["HD101", "HD103", "HD105"]
    assert all(
        one.cure.startswith("halfguard.upcast_trainable(model)") for one in diagnosis.findings
    )
    finding = found(diagnosis, "HD103")
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
    assert codes(diagnosis) == ["HD103"]
    assert "Attempting" not in found(diagnosis, "HD103").why
