"""Assertions that compare with float64 and print the worst input, and a counter of host syncs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.ops.accuracy import spacing
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


class HostSyncs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how often a tensor's value is read by the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return func(*args, **(kwargs or {}))
