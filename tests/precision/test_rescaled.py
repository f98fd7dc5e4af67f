"""Products that stay in half although their results leave its range, against float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.precision.islands import make_rescaled, remove_island
from halfguard.precision.rescaled import rescaled_product
from halfguard.records.plan import Island, PrecisionPlan

pytestmark = pytest.mark.usefixtures("seed")


@given(
    st.sampled_from(
        [
            ((5, 7), (7, 3)),
            ((2, 5, 7), (7, 3)),
            ((2, 4, 5, 7), (2, 4, 7, 3)),
            ((2, 5, 7), (1, 7, 3)),
        ]
    ),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.floats(1e-3, 6e4),
    st.floats(1e-3, 6e4),
)
def test_the_product_is_that_of_float64_to_half_precision(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype, left: float, right: float
) -> None:
    a, b = (torch.randn(shape).to(dtype) for shape in shapes)
    a, b = ((t / t.abs().max() * size).to(dtype) for t, size in ((a, left), (b, right)))
    got, want = rescaled_product(a, b, dtype), a.double() @ b.double()
    assert got.dtype is torch.float32
    # Entries that cancel are small beside their terms, whose rounding is what counts.
    terms = a.double().abs() @ b.double().abs()
    assert ((got - want).abs() <= 4 * torch.finfo(dtype).eps * terms).all()


def test_its_gradients_are_those_of_the_layer_in_half() -> None:
    x = torch.randn(2, 6, 16)
    plain = nn.Linear(16, 8)
    rescaled = make_rescaled(copy.deepcopy(plain))
    grads = []
    for layer in (plain, rescaled):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.float16):
            out = layer(given)
        out.float().square().sum().backward()
        grads.append((given.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=5e-3, atol=2e-3)


def test_a_matrix_that_is_small_beside_others_of_the_batch_keeps_its_gradient() -> None:
    size = torch.tensor([1.0, 1e-4])[:, None, None]
    left, right = torch.randn(2, 16, 8) * 30 * size, torch.randn(2, 8, 16) * size
    grad, grads = torch.randn(2, 16, 16) * 1e-3, []
    for dtype in (torch.float32, torch.float64):
        a, b = (t.to(dtype, copy=True).requires_grad_() for t in (left, right))
        out = a @ b if a.dtype is torch.float64 else rescaled_product(a, b, torch.float16)
        out.backward(grad.to(out.dtype))
        grads.append((a.grad, b.grad))
    for got, want in zip(*grads, strict=True):
        assert got is not None
        assert want is not None
        assert ((got - want)[1].norm() / want[1].norm()).item() < 5e-3


def test_a_layer_that_overflows_is_finite() -> None:
    layer = nn.Linear(64, 8)
    x = torch.full((4, 64), 400.0)
    nn.init.constant_(layer.weight, 30.0)
    with torch.autocast("cpu", torch.float16):
        assert layer(x).isinf().all()
        make_rescaled(layer)
        out = layer(x)
    torch.testing.assert_close(out, x @ layer.weight.T + layer.bias, rtol=1e-3, atol=0)
    remove_island(layer)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("shape", [(16,), (0, 16), (2, 0, 16), (1, 16)])
def test_results_have_the_shape_of_the_layer(shape: tuple[int, ...]) -> None:
    layer, x = nn.Linear(16, 8), torch.randn(shape, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        want, got = layer(x), make_rescaled(layer)(x)
    assert got.shape == want.shape
    torch.testing.assert_close(got, want.float(), rtol=2e-3, atol=2e-3)
    got.sum().backward()
    assert x.grad is not None


def test_a_layer_whose_forward_was_replaced_is_not_rescaled() -> None:
    layer = nn.Linear(4, 4)
    plan = PrecisionPlan(islands=(Island(module="0", kind="rescaled"),))
    hg.apply_plan(nn.Sequential(layer), plan)
    hg.apply_plan(nn.Sequential(layer), plan)  # a second time changes nothing
    remove_island(layer)
    plain = layer.forward
    layer.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="rescales 0, a Linear"):
        hg.apply_plan(nn.Sequential(layer), plan)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e7])
def test_inputs_and_weights_in_fp32_may_be_beyond_half(size: float) -> None:
    left, right = (torch.randn(shape, requires_grad=True) for shape in ((6, 32), (32, 4)))
    out = rescaled_product(left * size, right * size, torch.float16)
    wide = (left.double() * size) @ (right.double() * size)
    grad = torch.randn(6, 4)
    got = torch.autograd.grad(out, (left, right), grad)
    want = torch.autograd.grad(wide, (left, right), grad.double())
    for one, other in ((out, wide), *zip(got, want, strict=True)):
        assert (one - other).norm() <= 2e-3 * other.norm()


def test_without_autocast_it_is_the_layer_bit_for_bit() -> None:
    layer, x = nn.Linear(8, 4), torch.randn(3, 8)
    before = layer(x)
    assert torch.equal(make_rescaled(layer)(x), before)


def test_a_plan_with_a_pattern_rescales_every_block() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
    plan = PrecisionPlan(islands=(Island(module="*.0", kind="rescaled"),))
    again = PrecisionPlan.from_yaml(plan.to_yaml())
    assert again == plan
    assert hg.apply_plan(model, again) == ["0.0", "1.0", "2.0"]
    with torch.autocast("cpu", torch.float16):
        out: Tensor = model.get_submodule("0.0")(torch.randn(2, 8))
    assert out.dtype is torch.float32


def test_only_linear_layers_can_be_rescaled() -> None:
    plan = PrecisionPlan(islands=(Island(module="0", kind="rescaled"),))
    with pytest.raises(UsageError, match="rescales 0, a LayerNorm"):
        hg.apply_plan(nn.Sequential(nn.LayerNorm(4)), plan)
