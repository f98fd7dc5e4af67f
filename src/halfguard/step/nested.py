"""Walk the leaves of nested values (batches, module outputs, states), or copy them with leaves replaced.

A batch may be anything that a loader returns, so the walk over it is bounded. Each container is opened once,
which ends cycles. A budget ends linked objects and huge lists. Containers take turns, a few entries at a
time, so that a large one does not hide the tensors beside it. Containers whose own code raises are skipped.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from types import (
    BuiltinFunctionType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from torch import Tensor, nn

MAX_DEPTH = 64  # of a batch
# Of a batch, leaves and containers; up to 64 plain values in a row count as three.
MAX_NODES = 4_000
_CHUNK = 64  # entries that are read from a container in one turn
_USER_CODE = 16  # nodes that an entry counts for if reading it runs code of a library or the user
PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None)})
_CLOSED = (
    *(Tensor, nn.Module, Iterator, range, str, bytes, bytearray, memoryview),
    *(int, float, complex, Enum, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)

# Entries of a container (pairs with a key, or bare values), True for pairs, and the nodes of each
_Entries = tuple[Iterator[Any], bool, int]


class PlainValues(tuple[Any, ...]):
    """Neighbouring numbers and strings of one list, yielded together."""

    __slots__ = ()


def iter_leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``("logits", leaf)``, ``("hidden.1", leaf)`` and so on; a bare leaf has the path "".

    Mappings (transformers' ModelOutput is one), tuples, lists and dataclasses are opened, in any nesting.
    """
    open_now: set[int] = set()  # containers on the way from the root to the present one
    stack: list[tuple[Iterator[tuple[str, Any]], int]] = [(iter([("", value)]), 0)]
    while stack:
        entries, owner = stack[-1]
        for path, item in entries:
            inside = None if isinstance(item, Tensor) else _paths(item, path)
            if inside is None:
                yield path, item
            elif id(item) not in open_now:
                open_now.add(id(item))
                stack.append((inside, id(item)))
                break
        else:
            stack.pop()
            open_now.discard(owner)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested value, in order."""
    return (leaf for _, leaf in iter_leaves(value) if isinstance(leaf, Tensor))


def floating_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can hold a number which is not finite, with their paths."""
    for path, leaf in iter_leaves(value):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
            yield path, leaf


def _paths(value: Any, path: str) -> Iterator[tuple[str, Any]] | None:
    """Return the entries of a container with their paths, or None for a leaf."""
    entries: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        entries = value.items()
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", ())
        entries = zip(names, value, strict=True) if len(names) == len(value) else enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        entries = ((field.name, getattr(value, field.name, None)) for field in fields(value))
    else:
        return None
    return ((f"{path}.{key}" if path else str(key), item) for key, item in entries)


def batch_leaves(batch: Any) -> Iterator[Any]:
    """Yield the leaves of a batch: sequences, sets, tables and the attributes of objects are opened as well.

    An iterator is a leaf: opening it would use it up. Beyond ``MAX_DEPTH`` and ``MAX_NODES`` nothing is read.
    """
    for _, leaf in named_batch_leaves(batch):
        if type(leaf) is PlainValues:
            yield from leaf
        else:
            yield leaf


def named_batch_leaves(
    batch: Any, max_nodes: int = MAX_NODES
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of a batch after the keys and attributes that lead to them.

    Numbers and strings that follow each other in a list are yielded together, as ``PlainValues``.
    """
    opened: dict[int, Any] = {}  # holds the containers, so that no other object gets their ids
    waiting: deque[tuple[tuple[str, ...], int, _Entries]] = deque(
        [((), 0, (iter([batch]), False, 1))]
    )
    nodes = max_nodes
    while waiting and nodes > 0:
        turn = waiting.popleft()
        names, depth, (entries, named, cost) = turn
        try:
            chunk = list(islice(entries, _CHUNK))
        except Exception:  # noqa: BLE001, S112 - code of the container's class
            continue
        if len(chunk) == _CHUNK:
            waiting.append(turn)
        if not named and len(chunk) > 1 and PLAIN.issuperset(map(type, chunk)):
            nodes -= 3 * cost
            yield names, PlainValues(chunk)
            continue
        nodes -= cost * len(chunk)
        for entry in chunk:
            try:
                key, value = entry if named else (None, entry)
                _ = value.__class__  # isinstance needs it; a proxy whose object is gone raises here
                kind: Any = type(value)
                open_entries = _opener(kind)
                inside = None if open_entries is None else open_entries(value)
            except Exception:  # noqa: BLE001, S112 - code of the value's class
                continue
            path = (*names, key) if isinstance(key, str) else names
            if inside is None:
                yield path, value
            elif id(value) not in opened and depth < MAX_DEPTH:
                opened[id(value)] = value
                waiting.append((path, depth + 1, inside))


@functools.lru_cache(maxsize=1024)
def _opener(kind: type[Any]) -> Callable[[Any], _Entries | None] | None:
    """Return the function that opens objects of a type, or None for leaves."""
    numpy = sys.modules.get("numpy")
    if issubclass(kind, _CLOSED) or (numpy and issubclass(kind, numpy.generic)):
        return None
    if issubclass(kind, Mapping):
        cost = 1 if issubclass(kind, dict) else _USER_CODE
        return lambda value: (iter(value.items()), True, cost)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: (zip(value._fields, value, strict=False), True, 1)
    if issubclass(kind, Sequence | Set):
        cost = 1 if issubclass(kind, list | tuple | set | frozenset | deque) else _USER_CODE
        return lambda value: (iter(value), False, cost)
    if numpy and issubclass(kind, numpy.ndarray):
        return _open_array
    if hasattr(kind, "to_numpy"):  # of pandas, for instance: a table has columns
        if hasattr(kind, "columns"):
            return lambda value: (iter(value.items()), True, _USER_CODE)
        return lambda value: (iter([value.to_numpy()]), False, _USER_CODE)
    return _open_object


def _open_array(array: Any) -> _Entries | None:
    if array.dtype.names:
        return ((name, array[name]) for name in array.dtype.names), True, 1
    return (iter(array.flat), False, 1) if array.dtype.hasobject else None


def _open_object(value: Any) -> _Entries | None:
    kind: Any = type(value)
    if hasattr(value, "__dict__") or slots_of(kind):
        return attributes(value), True, 1
    return None


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an object holds in slots or in ``__dict__``; properties are not called."""
    kind: Any = type(value)
    for name, slot in slots_of(kind):
        with contextlib.suppress(AttributeError):  # a slot without a value
            yield name, slot.__get__(value)
    yield from getattr(value, "__dict__", {}).items()


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type[Any]) -> tuple[tuple[str, MemberDescriptorType], ...]:
    """Return the slots of a class and its bases, with their names."""
    members = (
        item for base in kind.__mro__ if "__slots__" in vars(base) for item in vars(base).items()
    )
    return tuple((n, slot) for n, slot in members if isinstance(slot, MemberDescriptorType))


def text_of(value: Any) -> str:
    """Return ``str(value)``, or the type's name if that raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - code of the user
        return f"a {type(value).__name__}"


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
