"""Norms over vectors from subnormal to enormous, against float64, gradients included."""

from __future__ import annotations

import pytest
import torch
from benchmarks.ops.references import (
    cosine_similarity_reference,
    normalize_reference,
    rms_norm_reference,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops import cosine_similarity, normalize, rms_norm
from tests.support.cases import each

from .helper import DTYPES, HALF, assert_agrees, gradients

SIZES = {
    torch.float16: (1e-6, 1e-3, 1.0, 300.0, 1e4),
    torch.bfloat16: (1e-30, 1e-6, 1.0, 300.0, 1e30),
    torch.float32: (1e-30, 1e-6, 1.0, 300.0, 1e30),
}
CASES = [(dtype, size) for dtype in DTYPES for size in SIZES[dtype]]


def vectors(dtype: torch.dtype, size: float, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return (size * torch.randn(9, 40, generator=generator)).to(dtype)


def from_above(dtype: torch.dtype, size: float, *shape: int) -> Tensor:
    """A gradient small enough that gradient / size stays within the dtype."""
    generator = torch.Generator().manual_seed(9)
    return (min(size, 1.0) * torch.randn(*shape, generator=generator)).to(dtype)


@each(("dtype", "size"), CASES)
@each("dim", [-1, 0])
def test_normalize(dtype: torch.dtype, size: float, dim: int) -> None:
    x = vectors(dtype, size, 1)
    assert_agrees(
        lambda x: normalize(x, dim),
        lambda x: normalize_reference(x, dim),
        x,
        upstream=from_above(dtype, size, 9, 40),
    )


@each(("dtype", "size"), CASES)
def test_cosine_similarity(dtype: torch.dtype, size: float) -> None:
    assert_agrees(
        cosine_similarity,
        cosine_similarity_reference,
        vectors(dtype, size, 1),
        vectors(dtype, size, 2),
        upstream=from_above(dtype, size, 9),
    )


@each(("dtype", "size"), CASES)
@each("eps", [1e-6, 1e-30])
def test_rms_norm(dtype: torch.dtype, size: float, eps: float) -> None:
    weight = torch.linspace(0.5, 2, 40).to(dtype)
    assert_agrees(
        lambda x, weight: rms_norm(x, weight, eps),
        lambda x, weight: rms_norm_reference(x, weight, eps),
        vectors(dtype, size, 1),
        weight,
        upstream=from_above(dtype, max(size, eps**0.5), 9, 40),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_eps_of_rms_norm_follows_the_dtype(dtype: torch.dtype) -> None:
    x = vectors(dtype, 1.0, 4)
    info = torch.finfo(dtype)
    explicit = rms_norm(x, eps=info.smallest_normal * info.eps)
    assert torch.equal(rms_norm(x), explicit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_zero_vector(dtype: torch.dtype) -> None:
    zero, other = torch.zeros(2, 5, dtype=dtype), torch.ones(2, 5, dtype=dtype)
    for op, inputs in (
        (normalize, (zero,)),
        (cosine_similarity, (zero, other)),
        (cosine_similarity, (other, zero)),
        (rms_norm, (zero,)),
    ):
        value, found = gradients(op, inputs)
        assert (value == 0).all()
        assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize("dtype", HALF)
def test_one_nonzero_entry_of_any_size_normalises_to_one(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    entries = torch.tensor([info.smallest_normal * info.eps, info.max, -1.0], dtype=dtype)
    x = torch.diag(entries.float()).to(dtype)
    assert torch.equal(normalize(x), torch.diag(entries.float().sign()).to(dtype))


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8
    ).filter(any)
)
def test_any_float32_vector_has_length_one(entries: list[float]) -> None:
    length = normalize(torch.tensor([entries])).double().square().sum().sqrt()
    assert abs(length.item() - 1) < 1e-5


def test_float64_gradients_of_gradients(seed: object) -> None:
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(normalize, (x,))
    assert torch.autograd.gradgradcheck(lambda x: rms_norm(x, eps=1e-3), (x,))


def test_rms_norm_needs_an_eps() -> None:
    with pytest.raises(UsageError, match="eps"):
        rms_norm(torch.ones(3), eps=0.0)
