r"""The error that a correct result of a listed operation may have against float64.

Inputs are rounded first to the dtype that autocast's rule gives, so float64 and the device start from the
same numbers. A correct kernel then returns the exact result of slightly changed inputs, slightly changed
itself (it is backward stable), so its error is bounded by

    |computed - exact| <= g (c + |exact|) + r u |exact| + (s - 1) r u (c + |exact|)

- c = sum |df/dx_i| |x_i| is the condition: how far a relative change of the inputs moves the result. It is
  computed by autograd in float64, for every element.
- g = (2 n + 16) 2^-24 is the error of the arithmetic in FP32. A sum of n terms, in any order, is within n
  roundings, or 2 n where matrix units truncate instead of rounding (Fasi and others, 2021); n is the
  number of elements of the largest input, which no sum here exceeds. 16 roundings are 8 units in the last
  place, for the functions themselves: CUDA's manual states a few units for each of them.
- u is the unit roundoff of the dtype of the result (2^-11 FP16, 2^-8 BF16, 2^-24 FP32), and r the
  roundings to it: one, or up to four on an accelerator that exchanges partial sums in 16 bits
  (``parity.bounds``).
- s counts the stages of operations that consist of several kernels; each rounds what the next one reads.

In FP32 the bound is near 1e-5 of the result: results that were computed in half exceed it, by factors from
8 up in the operations that a test tries. In 16 bits a single kernel must be within r units of roundoff, so
a wrong algorithm or a sum that was kept in half over many terms is found, and an error of one rounding is
not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halfguard import formats

FP32_UNIT = 2.0**-24
FUNCTION_ROUNDINGS = 16
ACCELERATOR_ROUNDINGS = 4


def condition(out: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return sum |df/dx| |x| for every element of ``out``, which was computed from ``inputs``."""
    rows = torch.eye(out.numel(), dtype=out.dtype).view(out.numel(), *out.shape)
    slopes = _gradients(out, inputs, rows)
    moved = [
        (slope * x).abs().flatten(1).sum(1)
        for slope, x in zip(slopes, inputs, strict=True)
        if slope is not None
    ]
    return torch.stack(moved).sum(0).view(out.shape).detach()


def _gradients(out: Tensor, inputs: list[Tensor], rows: Tensor) -> list[Tensor | None]:
    """Return the gradients of each element, stacked; one by one where torch cannot batch an operation."""
    options = {"retain_graph": True, "allow_unused": True}
    try:
        return list(torch.autograd.grad(out, inputs, rows, is_grads_batched=True, **options))
    except RuntimeError:
        each = [torch.autograd.grad(out, inputs, row, **options) for row in rows]
        columns = zip(*each, strict=True)
        return [None if column[0] is None else torch.stack(column) for column in columns]


def error_bound(
    exact: Tensor, condition: Tensor, *, terms: int, stages: int, dtype: torch.dtype, roundings: int
) -> Tensor:
    """Return the largest error of a correct result; the module's docstring derives it."""
    shape = formats.for_dtype(dtype)
    unit, size = shape.epsilon / 2, exact.abs()
    arithmetic = (2 * terms + FUNCTION_ROUNDINGS) * FP32_UNIT * (condition + size)
    between = (stages - 1) * roundings * unit * (condition + size)
    smallest = shape.smallest_subnormal if shape.exponent_bits < 8 else shape.smallest_normal
    return arithmetic + between + roundings * (unit * size + smallest)
