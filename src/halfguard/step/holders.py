"""Kinds of objects that hold state between steps: how each is saved, compared and put back.

What is saved is shallow: the entries of a dict or list, by reference. Whatever an entry holds is saved by a
holder of its own. A holder is put back in place, so that every other reference to it sees the same.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from types import CellType, GeneratorType
from typing import Any

from torch import Tensor, nn

from halfguard.step.nested import PLAIN, attributes

_MISSING, _GRAPH = object(), object()
_LONG = 1_000  # entries
# What torch keeps in every module; hooks and submodules are not the user's state.
OWN_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}

# As its owner would write it; made from its parts only when it is reported: (name of the owner, style, key)
Name = str | tuple[Any, str, Any]


def text_of_name(name: Name) -> str:
    """Return a name as text."""
    if isinstance(name, str):
        return name
    owner, style, key = name
    try:
        return style.format(text_of_name(owner), key)
    except Exception:  # noqa: BLE001 - code of the key's class
        return text_of_name(owner)


def same_value(one: Any, other: Any) -> bool:
    """Return whether two entries are the same object, or equal numbers or strings."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in PLAIN:
        return False
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _without_graph(value: Any) -> Any:
    return _GRAPH if type(value) is Tensor and value.grad_fn is not None else value


class Holder:
    """An object that holds state; every method may run code of its class, which may raise."""

    restorable = True
    style = "{}[{!r}]"

    def __init__(self, name: Name, target: Any) -> None:
        self.name = name
        self.target = target

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Yield key and value of what it holds."""
        return iter(())

    def save(self) -> Any:
        """Return what it holds now."""
        raise NotImplementedError

    def is_as(self, saved: Any) -> bool:
        """Return whether it holds what ``save`` returned."""
        return bool(self.save() == saved)

    def restore(self, saved: Any) -> None:
        """Make it hold again what ``save`` returned."""
        raise NotImplementedError

    def changed_keys(self, _saved: Any) -> list[Any]:
        """Return the keys whose entries differ from what was saved; none if it has no keys."""
        return []


Saved = Sequence[tuple[Holder, Any]]  # with what each of them held


class DictHolder(Holder):
    """A dict, or the namespace of an object: all entries, or those of ``keys``, or all but ``left_out``."""

    def __init__(
        self,
        name: Name,
        target: dict[Any, Any],
        *,
        style: str = "{}[{!r}]",
        keys: frozenset[Any] | None = None,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(name, target)
        self.keys, self.style, self._left_out = keys, style, left_out
        self._kind: Any = OrderedDict if isinstance(target, OrderedDict) else dict
        self.is_namespace = style != "{}[{!r}]"  # the order of its entries does not count
        self.may_hold_graphs = False  # tensors with a graph, which no reference may keep alive
        self.assigned_keys = frozenset[str]()  # that code which was reached assigns, at some step

    def entries(self) -> Iterator[tuple[Any, Any]]:
        if self.keys is not None:
            return iter(self.save().items())
        left_out = self._left_out
        return (item for item in dict.items(self.target) if item[0] not in left_out)

    def save(self) -> dict[Any, Any]:
        if self.keys is not None:
            target = self.target
            saved = {key: target[key] for key in self.keys if key in target}
        else:
            saved = dict.copy(self.target)
        if self.may_hold_graphs:
            return {key: _without_graph(value) for key, value in saved.items()}
        return saved

    def is_as(self, saved: dict[Any, Any]) -> bool:
        now = self.save()
        if len(now) != len(saved):
            return False
        if all(map(operator.is_, now, saved)):  # the same keys in the same order
            values, before = now.values(), saved.values()
            if all(map(operator.is_, values, before)):
                return True
        elif not self.is_namespace:
            return False
        return not self.changed_keys(saved)

    def restore(self, saved: dict[Any, Any]) -> None:
        kind, target, left_out = self._kind, self.target, self._left_out
        for key in self.changed_keys(saved):
            if key not in saved:
                kind.__delitem__(target, key)
        for key, value in saved.items():
            if value is _GRAPH or key in left_out:
                continue
            if dict.get(target, key, _MISSING) is not value:
                kind.__setitem__(target, key, value)
        if not self.is_namespace and not all(map(operator.is_, target, saved)):
            kind.clear(target)
            kind.update(target, saved)

    def changed_keys(self, saved: dict[Any, Any]) -> list[Any]:
        now = self.save()
        keys = (*saved, *(key for key in now if key not in saved))
        return [
            key
            for key in keys
            if key not in self._left_out
            and saved.get(key) is not _GRAPH
            and not same_value(now.get(key, _MISSING), saved.get(key, _MISSING))
        ]


class ListHolder(Holder):
    """A list or a deque."""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return enumerate(self.save())

    def save(self) -> list[Any]:
        kind: Any = list if isinstance(self.target, list) else deque
        return list(kind.__iter__(self.target))

    def is_as(self, saved: list[Any]) -> bool:
        now = self.save()
        if len(now) != len(saved):
            return False
        return all(map(operator.is_, now, saved)) or all(map(same_value, now, saved))

    def restore(self, saved: list[Any]) -> None:
        target: Any = self.target
        if isinstance(target, list):
            list.__setitem__(target, slice(None), saved)
        else:
            deque.clear(target)
            deque.extend(target, saved)


class HistoryHolder(Holder):
    """A long list to which a step only appends: its length is all that is saved."""

    target: list[Any]

    def save(self) -> int:
        return len(self.target)

    def restore(self, saved: int) -> None:
        del self.target[saved:]

    @staticmethod
    def fits(target: Any, before: Any) -> bool:
        """Return whether a list is long, and has only grown."""
        if type(target) is not list or not len(target) >= len(before) > _LONG:
            return False
        return all(map(operator.is_, target, before))


class BytesHolder(Holder):
    """A bytearray or an array of numbers."""

    def save(self) -> Any:
        return self.target[:]

    def restore(self, saved: Any) -> None:
        self.target[:] = saved


class SetHolder(Holder):
    """A set."""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return ((None, item) for item in set.copy(self.target))

    def save(self) -> set[Any]:
        return set.copy(self.target)

    def restore(self, saved: set[Any]) -> None:
        set.clear(self.target)
        set.update(self.target, saved)


class CellHolder(Holder):
    """A variable of an enclosing function."""

    style = "{}"
    is_assigned = False  # by code that was reached, at some step
    target: CellType

    def entries(self) -> Iterator[tuple[Any, Any]]:
        value = self.save()
        if value is not _MISSING:
            yield None, value

    def save(self) -> Any:
        try:
            return self.target.cell_contents
        except ValueError:  # not assigned yet
            return _MISSING

    def is_as(self, saved: Any) -> bool:
        return same_value(self.save(), saved)

    def restore(self, saved: Any) -> None:
        if saved is _MISSING:
            del self.target.cell_contents
        else:
            self.target.cell_contents = saved


class FlagsHolder(Holder):
    """The parameters of a module that are trained: code may freeze some and thaw others."""

    target: nn.Module

    def save(self) -> list[bool]:
        return [weight.requires_grad for weight in self.target.parameters()]

    def restore(self, saved: list[bool]) -> None:
        for weight, flag in zip(self.target.parameters(), saved, strict=False):
            if weight.is_leaf:
                weight.requires_grad_(flag)


class _AttributesHolder(Holder):
    """Attributes that are no dict."""

    style = "{}.{}"

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.save().items())

    def is_as(self, saved: dict[str, Any]) -> bool:
        return not self.changed_keys(saved)

    def changed_keys(self, saved: dict[str, Any]) -> list[str]:
        now = self.save()
        return [
            name
            for name in now.keys() | saved.keys()
            if not same_value(now.get(name, _MISSING), saved.get(name, _MISSING))
        ]

    def restore(self, saved: dict[str, Any]) -> None:
        kind: Any = type if isinstance(self.target, type) else object
        for name in self.changed_keys(saved):
            if name in saved:
                kind.__setattr__(self.target, name, saved[name])
            else:
                kind.__delattr__(self.target, name)


class SlotsHolder(_AttributesHolder):
    """An object with slots."""

    def save(self) -> dict[str, Any]:
        own = getattr(self.target, "__dict__", {})
        return {name: value for name, value in attributes(self.target) if name not in own}


class ClassHolder(_AttributesHolder):
    """A class with attributes that its objects share."""

    def save(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self.target).items()
            if not (name.startswith("__") and name.endswith("__"))
        }


class ArrayHolder(Holder):
    """A NumPy array."""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return enumerate(self.target.flat) if self.target.dtype.hasobject else iter(())

    def save(self) -> Any:
        return self.target.copy()

    def is_as(self, saved: Any) -> bool:
        if self.target.shape != saved.shape:
            return False
        return bool(self.target.tobytes() == saved.tobytes())

    def restore(self, saved: Any) -> None:
        if self.target.shape != saved.shape:
            self.target.resize(saved.shape, refcheck=False)
        self.target[...] = saved


class VariableHolder(Holder):
    """A context variable."""

    def save(self) -> Any:
        return self.target.get(_MISSING)

    def is_as(self, saved: Any) -> bool:
        return same_value(self.save(), saved)

    def restore(self, saved: Any) -> None:
        self.target.set(saved)


class WeakDictHolder(Holder):
    """A dict with weak keys or weak values."""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.save())

    def save(self) -> list[tuple[Any, Any]]:
        return list(self.target.items())

    def is_as(self, saved: list[tuple[Any, Any]]) -> bool:
        now = self.save()
        return len(now) == len(saved) and all(
            key is other and same_value(value, before)
            for (key, value), (other, before) in zip(now, saved, strict=True)
        )

    def restore(self, saved: list[tuple[Any, Any]]) -> None:
        self.target.clear()
        self.target.update(saved)


class ConnectionHolder(Holder):
    """A connection to a database: it counts what it has changed, but nobody can take that back."""

    restorable = False

    def save(self) -> int:
        return int(self.target.total_changes)


class IteratorHolder(Holder):
    """An iterator: it can be seen to have advanced, but nobody can set it back."""

    restorable = False
    style = "{}"

    def entries(self) -> Iterator[tuple[Any, Any]]:
        return ((None, value) for value in _parts_of(self.target))

    def save(self) -> list[Any]:
        return [_fingerprint(value) for value in _parts_of(self.target)]


def save_all(holders: Iterable[Holder]) -> list[tuple[Holder, Any]]:
    """Save holders; one whose own code raises is left alone."""
    saved = []
    for holder in holders:
        with suppress(Exception):
            saved.append((holder, holder.save()))
    return saved


def is_as(holder: Holder, before: Any) -> bool:
    """Return whether a holder holds what was saved; True if its own code raises."""
    try:
        return holder.is_as(before)
    except Exception:  # noqa: BLE001 - code of its class
        return True


def restore_changed(saved: Iterable[tuple[Holder, Any]]) -> None:
    """Put back what differs from what was saved, as far as that can be done."""
    for holder, before in saved:
        if holder.restorable and not is_as(holder, before):
            with suppress(Exception):
                holder.restore(before)


def _parts_of(iterator: Any) -> list[Any]:
    """Return what an iterator consists of, as far as Python shows it."""
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return [] if frame is None else [frame.f_lasti, *frame.f_locals.values()]
    if isinstance(iterator, itertools.count):
        return [repr(iterator)]
    if getattr(iterator, "__dict__", None):
        return list(vars(iterator).values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            _, *state = iterator.__reduce__()
    except Exception:  # noqa: BLE001 - most iterators of extensions cannot be copied
        return []
    groups = (group if isinstance(group, tuple) else (group,) for group in state)
    return list(itertools.chain.from_iterable(groups))


def _fingerprint(value: Any, depth: int = 0) -> Any:
    """Return something that is equal as long as a part of an iterator is; parts are often made anew."""
    if type(value) in PLAIN or type(value) is range:
        return repr(value)
    if depth < 3 and type(value) in {list, tuple}:
        ends = (*islice(value, 8), *value[-8:])
        return len(value), [_fingerprint(item, depth + 1) for item in ends]
    if depth < 3 and issubclass(type(value), Iterator):
        return [_fingerprint(part, depth + 1) for part in _parts_of(value)]
    return id(value)
