"""Modules are their functions with the options kept."""

from __future__ import annotations

import pytest
import torch

from halfguard import ops
from tests.support.devices import chosen_device

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.on_standin
def test_modules_call_their_functions() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 8, generator=generator).half()
    target = torch.tensor([1, -1, 3, 7])
    norm = ops.RMSNorm(8, eps=1e-5, device=chosen_device())
    norm.weight.data.fill_(2.0)

    assert torch.equal(ops.SoftCap(5.0)(x), ops.soft_cap(x, 5.0))
    assert torch.equal(norm(x), ops.rms_norm(x, norm.weight, 1e-5))
    assert torch.equal(ops.BPRLoss()(x, y), ops.bpr_loss(x, y))
    assert torch.equal(
        ops.CrossEntropyLoss(ignore_index=-1, label_smoothing=0.2)(x, target),
        ops.cross_entropy(x, target, -1, 0.2),
    )
    p, q = x.sigmoid(), y.sigmoid()
    assert torch.equal(ops.BCELoss()(p, q), ops.binary_cross_entropy(p, q))
    assert ops.DistillationLoss(3.0, 0.5, 0.25, -1)(x, y, target) == ops.distillation_loss(
        x, y, target, temperature=3.0, kd_weight=0.5, ce_weight=0.25, ignore_index=-1
    )


@pytest.mark.on_standin
def test_a_float32_weight_serves_a_half_input() -> None:
    norm = ops.RMSNorm(4, device=chosen_device())
    x = torch.ones(2, 4, dtype=torch.float16)
    assert norm(x).dtype is torch.float16
    norm(x).sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.dtype is torch.float32


def test_modules_describe_themselves() -> None:
    assert repr(ops.SoftCap(30)) == "SoftCap(cap=30)"
    assert repr(ops.RMSNorm(8, 1e-6)) == "RMSNorm(8, eps=1e-06)"
