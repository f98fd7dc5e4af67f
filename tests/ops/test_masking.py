"""Masked softmax: right where something is kept, defined where nothing is."""

from __future__ import annotations

import pytest
import torch
from benchmarks.ops.references import masked_softmax_reference

from halfguard.errors import UsageError
from halfguard.ops import masked_softmax
from tests.support.cases import each

from .helper import DTYPES, assert_agrees, gradients


@each("dtype", DTYPES)
@each("size", [0.1, 5.0, 2e4])
@each("dim", [-1, 0])
def test_agrees_with_float64(dtype: torch.dtype, size: float, dim: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = (size * torch.randn(7, 33, generator=generator)).to(dtype)
    mask = torch.rand(7, 33, generator=generator) < 0.6
    mask[2], mask[:, 5] = False, False
    out = masked_softmax(x, mask, dim)
    assert out.dtype is dtype
    assert_agrees(
        lambda x: masked_softmax(x, mask, dim),
        lambda x: masked_softmax_reference(x, mask, dim),
        x,
        upstream=torch.randn(out.shape, generator=generator).to(dtype),
        terms=1.0,  # g - Σ g y cancels where y is nearly 1
    )


@each("dtype", DTYPES)
@each("padding", [0.0, float("nan"), float("inf"), -float("inf")])
def test_what_is_masked_never_matters(dtype: torch.dtype, padding: float) -> None:
    x = torch.tensor([[1.0, 2.0, padding], [padding, padding, padding]], dtype=dtype)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    value, (gradient,) = gradients(lambda x: masked_softmax(x, mask), (x,))
    assert value.isfinite().all()
    assert (value[1] == 0).all()
    assert gradient.isfinite().all()
    assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_anomaly_detection_finds_no_nan_inside(dtype: torch.dtype) -> None:
    x, mask = torch.ones(2, 3, dtype=dtype), torch.tensor([[False], [True]])
    with torch.autograd.set_detect_anomaly(True):
        gradients(lambda x: masked_softmax(x, mask), (x,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_scores(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([[largest, -largest, largest, 0.0]], dtype=dtype)
    mask = torch.tensor([[True, True, True, False]])
    value, (gradient,) = gradients(lambda x: masked_softmax(x, mask), (x,))
    assert value.tolist() == [[0.5, 0.0, 0.5, 0.0]]
    assert (gradient == 0).all()


def test_masks_broadcast() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).half()
    mask = torch.tensor([True, False, True, True])
    assert torch.equal(masked_softmax(x, mask), masked_softmax(x, mask.expand(2, 3, 4)))


def test_an_additive_mask_is_refused() -> None:
    with pytest.raises(UsageError, match="boolean"):
        masked_softmax(torch.ones(3), torch.zeros(3))
