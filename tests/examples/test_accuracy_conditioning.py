"""The first example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.docs import ROOT
from tests.support.modules import modules_of

from halfguard.precision.emulation import emulate_autocast

FOLDER = ROOT / "examples" / "accuracy_conditioning"
pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture
def model() -> Iterator[Any]:
    """The example's module ``model``, which imports its neighbour ``data``."""
    with modules_of(FOLDER, "data", "model") as found:
        yield found.model


def every_half() -> torch.Tensor:
    """Return all 65,536 half values as rows of one column, without those that are NaN."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    return values[~values.isnan()].unsqueeze(1)


@pytest.mark.parametrize("factor", [1.0, 100.0])
def test_the_embedding_is_finite_for_every_half_value(model: Any, factor: float) -> None:
    conditioning = model.AccuracyConditioning(64)
    with torch.no_grad():
        for parameter in conditioning.parameters():
            parameter.mul_(factor)  # weights far larger than any that training has reached
    accuracy = every_half().requires_grad_()
    with emulate_autocast("cuda"):
        embedded = conditioning(accuracy, torch.arange(len(accuracy)) % 4)
    assert embedded.isfinite().all()
    embedded.float().square().sum().backward()
    gradients = [accuracy.grad, *(p.grad for p in conditioning.parameters())]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_an_embedding_with_gelu_is_not(model: Any) -> None:
    conditioning = model.AccuracyConditioning(64, bounded=False)
    conditioning.projection[1] = torch.nn.GELU()
    with emulate_autocast("cuda"):
        embedded = conditioning(every_half().float() * 2, torch.zeros(63490, dtype=torch.long))
    assert not embedded.isfinite().all()


def test_a_missing_accuracy_is_not_hidden(model: Any) -> None:
    embedded = model.AccuracyConditioning(8)(torch.tensor([[torch.nan]]), torch.tensor([0]))
    assert embedded.isnan().all()


@pytest.mark.parametrize("variant", ["broken", "patched"])
def test_the_mask_raises_whatever_the_activation(model: Any, variant: str) -> None:
    student = model.Student(16, 2, 1, variant)
    digits = torch.zeros(2, 12, dtype=torch.long)
    inputs = (digits, torch.zeros(2, dtype=torch.long), torch.rand(2, 1), digits)
    student(*inputs)  # FP32 is fine
    with (
        emulate_autocast("cuda"),
        pytest.raises(RuntimeError, match="Half without overflow") as caught,
    ):
        student(*inputs)
    line = caught.traceback[-1]
    assert (Path(str(line.path)).name, "-1e9" in str(line.statement)) == ("model.py", True)
