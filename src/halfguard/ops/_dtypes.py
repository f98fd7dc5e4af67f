"""The dtype in which an operation computes, and the limits of a dtype.

A half value is widened to float32, computed there, and rounded once at the end. Autograd mirrors
the two casts, so the gradient is also a float32 product that is rounded once. float32 and float64
inputs keep their dtype: nothing here converts to float64, which some devices lack.
"""

from __future__ import annotations

import torch
from torch import Tensor

from halfguard.errors import UsageError

HALF_DTYPES = (torch.float16, torch.bfloat16)
FULL_DTYPES = (torch.float32, torch.float64)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which an input of ``dtype`` is computed."""
    if dtype in HALF_DTYPES:
        return torch.float32
    if dtype in FULL_DTYPES:
        return dtype
    raise UsageError(
        f"halfguard.ops supports float16, bfloat16, float32 and float64, but got {dtype}.",
        cure="Convert the tensor first, for example with x.float().",
    )


def widen(x: Tensor) -> Tensor:
    """Cast a tensor to the dtype in which it is computed."""
    return x.to(working_dtype(x.dtype))


def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Expand both tensors to their common shape; gradients are summed in the tensors' own dtype."""
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    return a.expand(shape), b.expand(shape)


def smallest_subnormal(dtype: torch.dtype) -> float:
    """Return the smallest positive number that ``dtype`` can hold."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps


def largest_finite(dtype: torch.dtype) -> float:
    """Return the largest finite number that ``dtype`` can hold."""
    return torch.finfo(dtype).max
