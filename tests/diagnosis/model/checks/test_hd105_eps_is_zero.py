from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import halfguard as hg
from tests.diagnosis.model.checks.helper import codes, cured, found, net


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
    assert codes(diagnosis) == ["HD104", "HD105"]
    finding = found(diagnosis, "HD105")
    assert "eps=1e-08 is 0 in float16" in finding.message
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
    assert "HD105" not in codes(hg.doctor(model, optimizer))
    assert after_a_step_without_a_gradient(model, optimizer)
