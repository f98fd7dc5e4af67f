"""Masked softmax and mean: right where something is kept, defined where nothing is."""

from __future__ import annotations

import pytest
import torch

from halfguard.errors import UsageError
from halfguard.ops import mask_fill_value, masked_mean, masked_softmax
from halfguard.ops.masking import masked_mean_reference, masked_softmax_reference

from .helper import DTYPES, HALF, assert_agrees, gradients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.1, 5.0, 2e4])
@pytest.mark.parametrize("dim", [-1, 0])
def test_agrees_with_float64(dtype: torch.dtype, size: float, dim: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = (size * torch.randn(7, 33, generator=generator)).to(dtype)
    mask = torch.rand(7, 33, generator=generator) < 0.6
    mask[2], mask[:, 5] = False, False
    for op, reference in (
        (masked_softmax, masked_softmax_reference),
        (masked_mean, masked_mean_reference),
    ):
        out = op(x, mask, dim)
        assert out.dtype is dtype
        upstream = torch.randn(out.shape, generator=generator).to(dtype)
        assert_agrees(
            lambda x, op=op: op(x, mask, dim),
            lambda x, reference=reference: reference(x, mask, dim),
            x,
            upstream=upstream,
            terms=1.0,  # softmax: g - Σ g y cancels where y is nearly 1
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [0.0, float("nan"), float("inf"), -float("inf")])
def test_what_is_masked_never_matters(dtype: torch.dtype, padding: float) -> None:
    x = torch.tensor([[1.0, 2.0, padding], [padding, padding, padding]], dtype=dtype)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    for op in (masked_softmax, masked_mean):
        value, (gradient,) = gradients(lambda x, op=op: op(x, mask), (x,))
        assert value.isfinite().all()
        assert (value[1] == 0).all()
        assert gradient.isfinite().all()
        assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_usual_softmax_of_a_fully_masked_row_is_nan(dtype: torch.dtype) -> None:
    x, mask = torch.ones(1, 3, dtype=dtype), torch.zeros(1, 3, dtype=torch.bool)
    assert x.masked_fill(~mask, -torch.inf).softmax(-1).isnan().all()
    assert (masked_softmax(x, mask) == 0).all()


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
    assert masked_mean(x[:, [0, 2]], mask[:, [0, 2]]).item() == largest


def test_a_half_sum_would_overflow() -> None:
    x = torch.full((1, 4096), 100.0, dtype=torch.float16)
    mask = torch.ones(1, 4096, dtype=torch.bool)
    assert x.sum().isinf()
    assert masked_mean(x, mask) == 100


@pytest.mark.parametrize("dtype", HALF)
def test_the_fill_value_can_be_added_to(dtype: torch.dtype) -> None:
    scores = torch.tensor([-16.0, -1000.0, 0.0, 1000.0], dtype=dtype)
    lowest, fill = torch.finfo(dtype).min, mask_fill_value(dtype)
    assert (scores + fill + fill + fill).isfinite().all()
    assert (torch.tensor(lowest / 4, dtype=dtype) + 3 * fill).isfinite()
    # A fully masked row keeps a softmax, a partly masked one gives the masked positions nothing.
    assert (scores + fill).softmax(-1).isfinite().all()
    kept = torch.tensor([True, True, False, False])
    assert ((scores + fill * ~kept).softmax(-1)[~kept] == 0).all()


def test_the_usual_fill_value_cannot_be_added_to() -> None:
    scores = torch.full((3,), -16.0, dtype=torch.float16)
    assert (scores + torch.finfo(torch.float16).min).softmax(-1).isnan().all()


def test_masks_broadcast() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).half()
    mask = torch.tensor([True, False, True, True])
    assert torch.equal(masked_softmax(x, mask), masked_softmax(x, mask.expand(2, 3, 4)))
    assert torch.equal(masked_mean(x, mask), masked_mean(x, mask.expand(2, 3, 4)))


def test_an_additive_mask_is_refused() -> None:
    with pytest.raises(UsageError, match="boolean"):
        masked_softmax(torch.ones(3), torch.zeros(3))
