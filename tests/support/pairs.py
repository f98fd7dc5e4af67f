"""Few cells that hold every pair of values of any two axes, instead of the product of all axes.

Most defects need one value or two that meet. ``HALFGUARD_CELLS=all`` asks for the product, as
``scripts/soak cells`` does.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

_Pair = tuple[tuple[int, int], tuple[int, int]]  # axis and value, twice


def all_pairs(axes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return cells, one value of each axis, that cover all pairs: always the same ones."""
    sizes = [range(len(axis)) for axis in axes]
    missing: dict[_Pair, None] = {
        ((i, a), (j, b)): None  # a dict, because a set has no order
        for i, j in itertools.combinations(range(len(axes)), 2)
        for a, b in itertools.product(sizes[i], sizes[j])
    }
    cells = []
    while missing:
        cell = dict(next(iter(missing)))
        for i in (i for i in range(len(axes)) if i not in cell):
            cell[i] = max(sizes[i], key=lambda a: _gain(cell, i, a, missing))
        for pair in itertools.combinations(sorted(cell.items()), 2):
            missing.pop(pair, None)
        cells.append(tuple(axes[i][cell[i]] for i in range(len(axes))))
    return cells


def _gain(cell: Mapping[int, int], axis: int, value: int, missing: Mapping[_Pair, None]) -> int:
    """Count the missing pairs that this value would add to a cell."""
    chosen = ((axis, value),)
    return sum(tuple(sorted((*chosen, other))) in missing for other in cell.items())


def parametrize_pairs(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with all pairs of these axes, or with their product if that is asked for.

    A value with marks, such as ``pytest.param(4, marks=pytest.mark.slow)``, gives them to its cells.
    """
    values = [list(axis) for axis in axes.values()]
    every = os.environ.get("HALFGUARD_CELLS") == "all"
    cells = itertools.product(*values) if every else all_pairs(values)
    return pytest.mark.parametrize(tuple(axes), [_param(cell) for cell in cells])


def _param(cell: Sequence[Any]) -> Any:
    params = [v if hasattr(v, "marks") else pytest.param(v) for v in cell]
    return pytest.param(*(p.values[0] for p in params), marks=[m for p in params for m in p.marks])
