"""A smooth bound on activations or logits that keeps their gradient non-zero.

    soft_cap(x) = cap * tanh(x / cap)
    d/dx        = sech²(u) = 4z / (1 + z)²,  u = x / cap, z = e^(-2|u|)

A hard clamp at ±cap zeroes the gradient of exactly those values that need correction. tanh keeps
it, if it is computed carefully. torch's 1 - tanh² is 0 in float32 from |u| = 9.1 up, since tanh is
rounded to 1. The true slope is 5e-8 there, which a loss scale of 1024 brings well into the range
of float16; bfloat16 can represent it up to |u| = 47.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import largest_finite, smallest_subnormal, widen


class _SoftCap(torch.autograd.Function):
    """cap * tanh(x / cap) whose gradient does not cancel in the tails."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cap: float) -> Tensor:
        return cap * (x / cap).tanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, ctx.cap = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        z = (-2 * (x / ctx.cap).abs()).exp()
        return grad * (4 * z / (1 + z).square()), None


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap): close to x where ``|x|`` is well below ``cap``, never beyond ±cap."""
    if not (math.isfinite(cap) and smallest_subnormal(x.dtype) <= cap <= largest_finite(x.dtype)):
        raise UsageError(
            f"soft_cap needs a cap between 0 and {largest_finite(x.dtype):g}, the largest finite "
            f"value of {x.dtype}; it was given {cap!r}.",
            cure="Logits are commonly capped at 30 to 50.",
        )
    bounded: Tensor = _SoftCap.apply(widen(x), cap)  # type: ignore[no-untyped-call]
    return bounded.to(x.dtype)
