"""Kinds of objects that hold state between steps: how each is saved, compared and put back.

What is saved is shallow: the entries of a dict or list, by reference. Whatever an entry holds is saved by a
holder of its own. A holder is put back in place, so that every other reference to it sees the same.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, MutableMapping
from types import CellType, GeneratorType
from typing import Any

from torch import nn

from halfguard.step.nested import PLAIN, attributes

_MISSING = object()
# What torch keeps in every module; hooks and submodules are not the user's state.
OWN_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}


def same_value(one: Any, other: Any) -> bool:
    """Return whether two entries are the same object, or equal numbers or strings."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in PLAIN:
        return False
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _same_items(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(map(same_value, one, other))


class Holder:
    """An object that holds state; ``name`` is how its owner would write it."""

    restorable = True

    def __init__(self, name: str, target: Any) -> None:
        self.name = name
        self.target = target

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, key and value of what it holds."""
        return iter(())

    def save(self) -> Any:
        """Return what it holds now."""
        raise NotImplementedError

    def is_as(self, saved: Any) -> bool:
        """Return whether it holds what ``save`` returned."""
        raise NotImplementedError

    def restore(self, saved: Any) -> None:
        """Make it hold again what ``save`` returned."""
        raise NotImplementedError

    def first_change(self, _saved: Any) -> str:
        """Return the name of the first entry that differs from what was saved."""
        return self.name


class DictHolder(Holder):
    """A dict, or the namespace of an object: all entries, or those of ``keys``, or all but ``left_out``."""

    def __init__(
        self,
        name: str,
        target: MutableMapping[Any, Any],
        *,
        style: str = "{}[{!r}]",
        keys: frozenset[Any] | None = None,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(name, target)
        self.keys, self._style, self._left_out = keys, style, left_out
        self._kind: Any = OrderedDict if isinstance(target, OrderedDict) else dict

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        for key, value in self.save().items():
            yield self._style.format(self.name, key), key, value

    def save(self) -> dict[Any, Any]:
        if self.keys is not None:
            return {key: self.target[key] for key in self.keys if key in self.target}
        saved = dict(self.target)
        for name in self._left_out.intersection(saved):
            del saved[name]
        return saved

    def is_as(self, saved: dict[Any, Any]) -> bool:
        now = self.save()
        if len(now) != len(saved):
            return False
        if all(map(operator.is_, now.values(), saved.values())) and list(now) == list(saved):
            return True
        return list(now) == list(saved) and _same_items(now.values(), saved.values())

    def restore(self, saved: dict[Any, Any]) -> None:
        kind, target = self._kind, self.target
        for key in [key for key in self.save() if key not in saved]:
            kind.__delitem__(target, key)
        for key, value in saved.items():
            if target.get(key, _MISSING) is not value:
                kind.__setitem__(target, key, value)
        if self.keys is None and not self._left_out and list(target) != list(saved):
            kind.clear(target)
            kind.update(target, saved)

    def first_change(self, _saved: dict[Any, Any]) -> str:
        now = self.save()
        for key in (*_saved, *now):
            if not same_value(now.get(key, _MISSING), _saved.get(key, _MISSING)):
                return self._style.format(self.name, key)
        return self.name


class ListHolder(Holder):
    """A list, a deque, a bytearray or an array of numbers."""

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        if isinstance(self.target, list | deque):
            for index, value in enumerate(self.target):
                yield f"{self.name}[{index}]", index, value

    def save(self) -> Any:
        return list(self.target)

    def is_as(self, saved: Any) -> bool:
        if len(self.target) != len(saved):
            return False
        return all(map(operator.is_, self.target, saved)) or _same_items(self.target, saved)

    def restore(self, saved: Any) -> None:
        target: Any = self.target
        if isinstance(target, list):
            list.__setitem__(target, slice(None), saved)
        elif isinstance(target, deque):
            deque.clear(target)
            deque.extend(target, saved)
        else:
            target[:] = (
                type(target)(saved)
                if isinstance(target, bytearray)
                else type(target)(target.typecode, saved)
            )


class SetHolder(Holder):
    """A set."""

    def save(self) -> set[Any]:
        return set(self.target)

    def is_as(self, saved: set[Any]) -> bool:
        return bool(self.target == saved)

    def restore(self, saved: set[Any]) -> None:
        set.clear(self.target)
        set.update(self.target, saved)


class CellHolder(Holder):
    """A variable of an enclosing function."""

    target: CellType

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        value = self.save()
        if value is not _MISSING:
            yield self.name, None, value

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


class SlotsHolder(Holder):
    """An object with slots."""

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        for name, value in self.save().items():
            yield f"{self.name}.{name}", name, value

    def save(self) -> dict[str, Any]:
        own = getattr(self.target, "__dict__", {})
        return {name: value for name, value in attributes(self.target) if name not in own}

    def is_as(self, saved: dict[str, Any]) -> bool:
        now = self.save()
        return now.keys() == saved.keys() and _same_items(now.values(), saved.values())

    def restore(self, saved: dict[str, Any]) -> None:
        for name in self.save().keys() - saved.keys():
            object.__delattr__(self.target, name)
        for name, value in saved.items():
            object.__setattr__(self.target, name, value)


class ClassHolder(Holder):
    """A class with attributes that its objects share."""

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        for name, value in vars(self.target).items():
            if not (name.startswith("__") and name.endswith("__")):
                yield f"{self.name}.{name}", name, value

    def save(self) -> dict[str, Any]:
        return {key: value for _, key, value in self.entries()}

    def is_as(self, saved: dict[str, Any]) -> bool:
        now = self.save()
        return now.keys() == saved.keys() and _same_items(now.values(), saved.values())

    def restore(self, saved: dict[str, Any]) -> None:
        now = self.save()
        for name in now.keys() - saved.keys():
            type.__delattr__(self.target, name)
        for name, value in saved.items():
            if now.get(name, _MISSING) is not value:
                type.__setattr__(self.target, name, value)


class ArrayHolder(Holder):
    """A NumPy array."""

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        if self.target.dtype.hasobject:
            for index, value in enumerate(self.target.flat):
                yield f"{self.name}[{index}]", index, value

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


class IteratorHolder(Holder):
    """An iterator: it can be seen to have advanced, but nobody can set it back."""

    restorable = False

    def entries(self) -> Iterator[tuple[str, Any, Any]]:
        for value in self._parts():
            yield self.name, None, value

    def save(self) -> list[Any]:
        return [value if type(value) in PLAIN else id(value) for value in self._parts()]

    def is_as(self, saved: list[Any]) -> bool:
        now = self.save()
        return len(now) == len(saved) and _same_items(now, saved)

    def _parts(self) -> list[Any]:
        """Return what the iterator consists of, as far as Python shows it."""
        iterator: Any = self.target
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
        return [
            part for group in state for part in (group if isinstance(group, tuple) else (group,))
        ]
