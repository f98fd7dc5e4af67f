"""Every unary operation over every value of both half dtypes: value, gradient, and the caps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from benchmarks.ops.accuracy import all_finite, all_values, gradient, measure
from benchmarks.ops.references import UNARY, UnaryOp, soft_cap_op
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops import exp, log, logsigmoid, rsqrt, soft_cap, sqrt
from tests.support.cases import each
from tests.support.devices import place

from .helper import HALF

every_op = each("unary", [*UNARY, soft_cap_op(1.0), soft_cap_op(50.0)])
every_half = each("dtype", HALF)


@every_half
@every_op
@each("upstream", [1.0, 2.0**-8, -(2.0**10)])
def test_within_one_ulp_on_every_finite_value(
    unary: UnaryOp, dtype: torch.dtype, upstream: float
) -> None:
    found = measure(unary, place(all_finite(dtype)), upstream)
    assert found.forward.error <= 1, f"value of {unary.name}: {found.forward}"
    assert found.gradient.error <= 1, f"gradient of {unary.name}: {found.gradient}"


@every_half
@every_op
def test_no_nan_is_made_on_any_bit_pattern(unary: UnaryOp, dtype: torch.dtype) -> None:
    x = place(all_values(dtype))
    value = unary.op(x)
    assert value.dtype is dtype
    assert value[x.isfinite()].isfinite().all()
    assert torch.equal(value.isnan(), x.isnan())
    assert not gradient(unary, x)[x.isfinite()].isnan().any()


@every_half
@every_op
def test_no_gradient_from_above_stays_none(unary: UnaryOp, dtype: torch.dtype) -> None:
    found = gradient(unary, place(all_finite(dtype)), upstream=0.0)
    assert (found == 0).all()


@every_half
@every_op
def test_infinities_go_where_the_reference_goes(unary: UnaryOp, dtype: torch.dtype) -> None:
    x = torch.tensor([-math.inf, math.inf], dtype=dtype)
    assert torch.equal(unary.op(x), unary.reference(x).to(dtype))


@every_op
def test_float32_stays_float32(unary: UnaryOp) -> None:
    generator = torch.Generator().manual_seed(1)
    x = 10 * torch.randn(50_000, generator=generator)
    found = measure(unary, x)
    assert unary.op(x).dtype is torch.float32
    assert found.forward.error <= 8, str(found.forward)
    assert found.gradient.error <= 8, str(found.gradient)


@every_op
def test_float32_over_its_whole_range(unary: UnaryOp) -> None:
    generator = torch.Generator().manual_seed(2)
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=generator)
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    assert unary.op(x).isfinite().all()
    found = measure(unary, x)
    # x / cap is rounded in float32: e^(-2x/cap) loses up to |2x/cap| ulp, about 90 at its smallest.
    assert found.forward.error <= 64, str(found.forward)
    assert found.gradient.error <= 128, str(found.gradient)


@every_op
def test_float64_gradients_of_gradients(unary: UnaryOp, seed: Callable[[int], None]) -> None:
    x = torch.tensor([0.05, 0.7, 2.0, 5.0, -1.5, 40.0], dtype=torch.float64, requires_grad=True)
    if unary.name in {"log", "sqrt", "rsqrt"}:
        x = x.detach().abs().requires_grad_()
    assert torch.autograd.gradcheck(unary.op, (x,), atol=1e-4)
    assert torch.autograd.gradgradcheck(unary.op, (x,), atol=1e-4)


@every_op
def test_per_sample_gradients(unary: UnaryOp) -> None:
    x = torch.tensor([0.5, 2.0, 7.0])
    slope = torch.func.vmap(torch.func.grad(unary.op))(x)
    torch.testing.assert_close(slope, unary.derivative(x).float())


@each("dtype", [*HALF, torch.float32, torch.float64])
def test_caps_are_where_the_documentation_says(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    tiny, largest = info.smallest_normal * info.eps, info.max

    def answer(value: float) -> Tensor:
        return torch.tensor([value], dtype=dtype)

    for below in (0.0, -0.0, -tiny, -1.0, -largest):
        assert torch.equal(log(answer(below)), log(answer(tiny)))
        assert torch.equal(sqrt(answer(below)), answer(0.0))
        assert torch.equal(rsqrt(answer(below)), rsqrt(answer(tiny)))
    assert torch.equal(exp(answer(largest)), answer(largest))
    assert exp(answer(math.log(largest) * (1 - 2 * info.eps))) < largest
    assert torch.equal(soft_cap(answer(largest), 30.0), answer(30.0))
    assert torch.equal(logsigmoid(answer(-largest)), answer(-largest))


def test_exp_of_float32_at_its_edge_is_finite() -> None:
    edge = torch.tensor(88.72283935546875)  # float32's log(largest), rounded up
    assert edge.exp().isinf()
    assert exp(edge) == torch.finfo(torch.float32).max


@each("cap", [0.0, -1.0, math.inf, math.nan, 1e5])
def test_soft_cap_refuses_a_cap_that_means_nothing(cap: float) -> None:
    with pytest.raises(UsageError, match="65504"):
        soft_cap(torch.ones(1, dtype=torch.float16), cap)


def test_integers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"torch\.int64"):
        log(torch.arange(3))
