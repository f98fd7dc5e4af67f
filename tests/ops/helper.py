"""Assertions that compare with float64 and print the worst input."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.ops.accuracy import spacing
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32)

# What float32 arithmetic may lose to cancellation in a sum, relative to the largest term.
FLOAT32_NOISE = 2.0**-19


def assert_near(result: Tensor, exact: Tensor, *, terms: float = 0.0, what: str = "result") -> None:
    """Within 1 ulp of ``exact`` (float64), plus what a float32 sum of such ``terms`` may lose."""
    assert exact.dtype is torch.float64
    assert result.shape == exact.shape, f"{what}: {result.shape} is not {exact.shape}"
    assert result.isfinite().all(), f"{what} is not finite: {result}"
    allowed = spacing(exact, result.dtype) + FLOAT32_NOISE * exact.abs().max().clamp(min=terms)
    excess = ((result.double() - exact).abs() / allowed).flatten()
    worst = int(excess.argmax())
    assert excess[worst] <= 1, (
        f"{what}[{worst}] is {result.flatten()[worst]!r}, exactly {exact.flatten()[worst]!r}: "
        f"{excess[worst]:.3g} times the allowed error"
    )


def gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], upstream: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The value of a function and its gradient in every input."""
    leaves = tuple(x.detach().clone().requires_grad_() for x in inputs)
    value = function(*leaves)
    weight = torch.ones_like(value) if upstream is None else upstream.to(value.dtype)
    return value.detach(), torch.autograd.grad(value, leaves, weight)


def assert_agrees(
    op: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
    upstream: Tensor | None = None,
    terms: float = 0.0,
) -> None:
    """An operation agrees with its float64 reference in value and in every gradient."""
    value, found = gradients(op, inputs, upstream)
    exact_value, exact = gradients(reference, tuple(x.double() for x in inputs), upstream)
    assert_near(value, exact_value, terms=terms, what="value")
    for index, (gradient, exact_gradient) in enumerate(zip(found, exact, strict=True)):
        assert gradient.dtype is inputs[index].dtype
        assert_near(gradient, exact_gradient, terms=terms, what=f"gradient {index}")
