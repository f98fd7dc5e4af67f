"""Some samples of a batch, and the search for those that are to blame.

A sample is a row that all tensors of a batch share. Samples are blamed by leaving them out: the search puts
back as many as it can, halving what it cannot put back at once, and what remains outside brings the fault
about. It never looks at a sample alone if it can help it, since a batch of one may break for its own reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

MOST = 8  # samples; if more are needed, the fault is not that of single ones


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    if isinstance(batch, SimpleNamespace):
        return SimpleNamespace(**mapped(vars(batch), change))
    return batch


def batch_size(batch: Any) -> int | None:
    """How many samples a batch has, or None if its tensors do not agree."""
    sizes: set[int] = set()

    def note(tensor: Tensor) -> Tensor:
        sizes.update(tensor.shape[:1])
        return tensor

    mapped(batch, note)
    return sizes.pop() if len(sizes) == 1 else None


def select(batch: Any, samples: tuple[int, ...]) -> Any:
    """The same structure with these samples only."""
    return mapped(batch, lambda tensor: tensor[list(samples)] if tensor.dim() else tensor)


def to_blame(size: int, is_good: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """The samples without which the batch is good; empty if there are none such, or too many.

    The widest parts come first, so that small ones are tried in good company.
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
            if len(outside) > min(MOST, size // 2):
                return ()
    # A fault of the whole, such as a sum over the batch, goes away with any samples that are left out. So
    # these, with as many of the others as make up the size that was good, must be bad.
    others = sorted(kept)[: size - 2 * len(outside)]
    return () if is_good(tuple(sorted([*others, *outside]))) else tuple(sorted(outside))


def _halves(samples: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = (len(samples) + 1) // 2
    return [part for part in (samples[:middle], samples[middle:]) if part]
