"""Division against float64 over a grid of awkward halves, all pairs of them."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.ops.accuracy import all_finite, ulp_error
from benchmarks.ops.references import div_reference
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from halfguard.ops import div

from .helper import DTYPES, HALF


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All pairs of 401 values from the whole range, with both zeros, extremes and subnormals."""
    values = all_finite(dtype)
    few = values[torch.linspace(0, len(values) - 1, 395).long()]
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    few = torch.cat([few, torch.tensor([0.0, -0.0, tiny, -tiny, 1.0, -3.0], dtype=dtype)])
    return few.repeat_interleave(len(few)), few.repeat(len(few))


def exact_gradients(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.finfo(a.dtype).max
    wide_a, wide_b = a.double(), b.double()
    capped = (b == 0) | ((wide_a / wide_b).abs() > largest)
    slopes = 1 / wide_b, -wide_a / wide_b / wide_b
    return slopes[0].masked_fill(capped, 0.0), slopes[1].masked_fill(capped, 0.0)


@pytest.mark.parametrize("dtype", HALF)
def test_all_pairs_within_one_ulp(dtype: torch.dtype) -> None:
    a, b = (x.requires_grad_() for x in pairs(dtype))
    value = div(a, b)
    error = ulp_error(value.detach(), div_reference(a, b).detach())
    worst = int(error.argmax())
    assert error[worst] <= 1, f"{a[worst]} / {b[worst]} is {value[worst]}: {error[worst]} ulp"
    assert value.isfinite().all()

    found = torch.autograd.grad(value, (a, b), torch.ones_like(value))
    for name, gradient, exact in zip("ab", found, exact_gradients(a, b), strict=True):
        error = ulp_error(gradient, exact)
        worst = int(error.argmax())
        assert error[worst] <= 1, (
            f"d/d{name} of {a[worst]} / {b[worst]} is {gradient[worst]}, exactly {exact[worst]}"
        )


@pytest.mark.parametrize("dtype", HALF)
def test_no_gradient_from_above_stays_none(dtype: torch.dtype) -> None:
    a, b = (x.requires_grad_() for x in pairs(dtype))
    value = div(a, b)
    for gradient in torch.autograd.grad(value, (a, b), torch.zeros_like(value)):
        assert (gradient == 0).all()


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_float32_is_finite_and_close(a: float, b: float) -> None:
    numerator, denominator = torch.tensor([a]), torch.tensor([b])
    value = div(numerator, denominator)
    assert value.isfinite().all()
    assert ulp_error(value, div_reference(numerator, denominator)) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_documented_cap(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    a = torch.tensor([0.0, 0.0, 1e3, 1e3, -1e3], dtype=dtype)
    b = torch.tensor([0.0, -0.0, 0.0, -0.0, 0.0], dtype=dtype)
    assert div(a, b).tolist() == [0.0, 0.0, largest, -largest, -largest]
    assert (a / b).isfinite().logical_not().all(), "the plain quotient has become safe: drop div"


def test_what_is_not_finite_stays_so() -> None:
    a = torch.tensor([math.inf, -math.inf, math.nan, 1.0, 1.0], dtype=torch.float16)
    b = torch.tensor([2.0, 0.0, 0.0, math.nan, math.inf], dtype=torch.float16)
    value = div(a, b)
    assert value[0] == math.inf
    assert value[1] == -math.inf
    assert value[2:4].isnan().all()
    assert value[4] == 0


def test_gradients_of_broadcasts_are_summed_before_they_are_rounded() -> None:
    # One at a time, 2^-12 is lost beside 1 in float16; together they are not.
    a = torch.tensor([1.0] + [2.0**-12] * 8, dtype=torch.float16)
    b = torch.ones((), dtype=torch.float16, requires_grad=True)
    (gradient,) = torch.autograd.grad(div(a, b).sum(), b)
    assert gradient == -(1 + 2.0**-9)


def test_mixed_dtypes_promote() -> None:
    half, full = torch.ones(2, dtype=torch.float16), torch.ones(2)
    assert div(half, full).dtype is torch.float32
    assert div(half, half.bfloat16()).dtype is torch.float32
    assert div(half, half).dtype is torch.float16
