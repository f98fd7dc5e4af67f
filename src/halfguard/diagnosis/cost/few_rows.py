"""A batch cut down to a few rows: what still fits where the whole batch did not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

FEW = 2  # one row is too few for BatchNorm


def few_rows(batch: Any) -> tuple[Any, float]:
    """The first rows of every tensor that has the batch's size, and how many times smaller that is."""
    sizes = Counter(t.shape[0] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim())
    if not sizes:
        return batch, 1.0
    (rows, _), few = sizes.most_common(1)[0], FEW
    if rows <= few:
        return batch, 1.0

    def cut(value: Any) -> Any:
        whole = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == rows
        return value[:few].clone() if whole else value  # a view would hold all of the rows

    return tree_map(cut, batch), rows / few
