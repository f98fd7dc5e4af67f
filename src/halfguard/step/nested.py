"""Walk the leaves of nested values (batches, module outputs, states), or copy them with leaves replaced.

A batch may be anything that a loader returns, so the walk over it is bounded. The set of open containers ends
cycles. A budget ends values that are too large to be a batch: a ``range`` of millions, linked objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

MAX_DEPTH = 16  # of a batch
MAX_NODES = 100_000  # of a batch, leaves and containers


def iter_leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``("logits", leaf)``, ``("hidden.1", leaf)`` and so on; a bare leaf has the path "".

    Mappings (transformers' ModelOutput is one), tuples, lists and dataclasses are opened, in any nesting.
    """
    return _walk(value, sys.maxsize, sys.maxsize, open_objects=False)


def batch_leaves(batch: Any) -> Iterator[Any]:
    """Yield the leaves of a batch: other sequences, sets, and objects with attributes are opened as well.

    An iterator is a leaf: opening it would use it up. Beyond ``MAX_DEPTH`` and ``MAX_NODES`` nothing is read.
    """
    return (leaf for _, leaf in _walk(batch, MAX_DEPTH, MAX_NODES, open_objects=True))


def floating_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can hold a number which is not finite, with their paths."""
    for path, leaf in iter_leaves(value):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
            yield path, leaf


def _walk(
    value: Any, max_depth: int, max_nodes: int, *, open_objects: bool
) -> Iterator[tuple[str, Any]]:
    open_now: set[int] = set()  # containers on the way from the root to the present one
    stack: list[tuple[Iterator[tuple[str, Any]], int]] = [(iter([("", value)]), 0)]
    nodes = 0
    while stack:
        entries, owner = stack[-1]
        for path, item in entries:
            nodes += 1
            if nodes > max_nodes:
                return
            inside = None if isinstance(item, Tensor) else _entries(item, path, open_objects)
            if inside is None:
                yield path, item
            elif id(item) not in open_now and len(stack) <= max_depth:
                open_now.add(id(item))
                stack.append((inside, id(item)))
                break
        else:
            stack.pop()
            open_now.discard(owner)


def _entries(value: Any, path: str, open_objects: bool) -> Iterator[tuple[str, Any]] | None:
    """Return the entries of a container with their paths, or None for a leaf."""
    entries: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, tuple | list):
        entries = zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    elif is_dataclass(value) and not isinstance(value, type):
        entries = ((field.name, getattr(value, field.name, None)) for field in fields(value))
    elif open_objects and isinstance(value, Sequence | Set) and not isinstance(value, str | bytes):
        entries = enumerate(value)
    elif (
        open_objects
        and hasattr(value, "__dict__")
        and not isinstance(value, Iterator)
        and not callable(value)
    ):
        entries = vars(value).items()
    else:
        return None
    return ((f"{path}.{key}" if path else str(key), item) for key, item in entries)


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy with ``change(leaf)`` in place of every leaf; no container is shared with the original.

    Mappings become dicts. Objects other than namespaces are leaves.
    """
    if isinstance(value, Mapping):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_leaves(item, change) for item in value)
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**map_leaves(vars(value), change))
    return change(value)
