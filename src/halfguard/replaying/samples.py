"""Select samples of a batch, and search for those that cause the fault.

A sample is a row that all tensors of a batch share. The search leaves samples out: it puts back as many as
possible, halving the parts that cannot be restored at once. The samples that stay out cause the fault. Single
samples are tried only within a larger batch, since a batch of one may fail for other reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from halfguard.step.nested import batch_leaves, map_leaves

MAX_BAD_SAMPLES = 8  # if more are needed, single samples are not the cause


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of the batch with every tensor changed."""
    return map_leaves(batch, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def batch_size(batch: Any) -> int | None:
    """Return the number of samples, or None if the tensors of the batch do not agree."""
    tensors = [leaf for leaf in batch_leaves(batch) if isinstance(leaf, Tensor)]
    sizes = {size for tensor in tensors for size in tensor.shape[:1]}
    return sizes.pop() if len(sizes) == 1 else None


def select(batch: Any, samples: tuple[int, ...]) -> Any:
    """Return the batch with these samples only."""
    return map_tensors(batch, lambda tensor: tensor[list(samples)] if tensor.dim() else tensor)


def find_bad_samples(size: int, is_good: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """Return the samples without which the batch is good; empty if there are none, or too many.

    Large parts come first, so that small ones are tried together with good samples.
    """
    kept: set[int] = set()
    outside: list[int] = []
    parts = deque(_halves(tuple(range(size))))
    while parts:
        part = parts.popleft()
        if is_good(tuple(sorted(kept.union(part)))):
            kept.update(part)
        elif len(part) > 1:
            parts.extend(_halves(part))
        else:
            outside += part
            if len(outside) > min(MAX_BAD_SAMPLES, size // 2):
                return ()
    # A fault of the whole batch, such as a sum over it, disappears with any samples that are left out. So
    # these samples must also fail in a batch of the size that was good.
    others = sorted(kept)[: size - 2 * len(outside)]
    return () if is_good(tuple(sorted([*others, *outside]))) else tuple(sorted(outside))


def _halves(samples: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = (len(samples) + 1) // 2
    return [part for part in (samples[:middle], samples[middle:]) if part]
