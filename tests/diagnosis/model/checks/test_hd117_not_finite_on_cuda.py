"""The forward pass is repeated by CUDA's autocast rules, which differ from the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net


class Identity(nn.Module):
    """A matrix times a vector, which CUDA's autocast computes in half, and the CPU's in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mv(self.weight, x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.product = net(), Identity()

    def forward(self, x: Tensor) -> Any:
        return self.product(self.inner(x).float().squeeze(1) * 1e7) / 1e7


def bce(model: nn.Module, x: Tensor) -> Tensor:
    p = torch.sigmoid(model(x).float())
    return nn.functional.binary_cross_entropy(p, torch.ones_like(p))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_healthy_passes_are_healthy_by_cudas_rules(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        assert hg.doctor(net(batchnorm=True), loss=loss, batch=batch()).ok


def test_an_overflow_on_the_gpu_alone_is_told_with_its_module() -> None:
    model = Scaled()
    with torch.autocast("cpu", torch.float16):
        assert loss(model, batch()).isfinite()
        finding = found(hg.doctor(model, loss=loss, batch=batch()), "HD117")
        assert finding.subject == "product"
        assert "in product made the first bad number" in finding.message
        cured(finding, model=model)
        assert hg.doctor(model, loss=loss, batch=batch()).ok
    with hg.emulate_autocast("cuda"):
        assert loss(model, batch()).isfinite()


def test_what_cuda_refuses_is_told() -> None:
    with torch.autocast("cpu", torch.float16):
        finding = found(hg.doctor(net(), loss=bce, batch=batch()), "HD117")
    assert "unsafe to autocast" in finding.message
    assert "with_logits" in finding.cure


def test_without_autocast_there_is_nothing_to_repeat() -> None:
    assert codes(hg.doctor(net(), loss=bce, batch=batch())) == []
