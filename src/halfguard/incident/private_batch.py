"""The summary of a batch that must not be stored: dtypes, shapes and statistics, no value, key or string.

Statistics are for floating-point tensors only, since integers are often identities. The largest magnitude is
rounded up to a power of two, and left out for small tensors, where it would be nearly a value.
"""

from __future__ import annotations

import math
import sys
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from halfguard.step.nested import batch_leaves

_MAX_LINES = 100
_LEAST = 64  # elements of a tensor whose largest magnitude is given


@torch.no_grad()
def summarize_batch(batch: Any) -> tuple[str, ...]:
    """Return a line for each tensor and array of a batch. This reads the device."""
    lines = (_line(leaf) for leaf in batch_leaves(batch))
    return tuple(islice((line for line in lines if line), _MAX_LINES))


def _line(leaf: Any) -> str:
    try:
        if isinstance(leaf, Tensor):
            name = f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
            return f"{name}{_statistics(leaf)}"
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(leaf, numpy.ndarray):
            kind = {"U": "str", "S": "bytes", "O": "object"}.get(leaf.dtype.kind, leaf.dtype.name)
            floating = _statistics(torch.from_numpy(leaf)) if leaf.dtype.kind == "f" else ""
            return f"numpy.{kind}{list(leaf.shape)}{floating}"
    except Exception:  # noqa: BLE001 - a layout or dtype that cannot be read
        return "a tensor that cannot be read"
    return ""


def _statistics(tensor: Tensor) -> str:
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return ""
    values = tensor.detach().float()
    finite = values[values.isfinite()].abs()
    text = f": {int(values.isnan().sum())} NaN, {int(values.isinf().sum())} infinite"
    if tensor.numel() < _LEAST or not finite.numel():
        return text
    largest = finite.max().item()
    power = f"at most 2^{math.ceil(math.log2(largest))}" if largest else "0"
    return f"{text}, largest magnitude {power}"
