"""Changes to torch that belong to the whole process, and last only while somebody needs them.

Two threads may need the same change, and two changes may wrap the same method. So a change is made for the
first who needs it and undone for the last, in whatever order they come and go, and a method is wrapped in
layers, each of which can be taken off alone. Without a layer left, the method is the one that was found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Layer = Callable[[Any], Any]  # takes the method below, returns the one that calls it

# Held while a change is made or undone. A garbage collection inside may release one more in the same thread.
_lock = threading.RLock()


class SharedChange:
    """A change that is in force while at least one block or object, of any thread, holds it."""

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change = change
        self._holders = 0
        self._undo: AbstractContextManager[object] | None = None

    def acquire(self) -> None:
        """Hold the change; the first holder makes it."""
        with _lock:
            if self._undo is None:
                change = self._change()
                change.__enter__()
                self._undo = change
            self._holders += 1

    def release(self) -> None:
        """Give it up; the last holder undoes it."""
        with _lock:
            self._holders -= 1
            if self._holders == 0 and self._undo is not None:
                change, self._undo = self._undo, None
                change.__exit__(None, None, None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the change for a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


class _LayeredMethod:
    """A method of a class: what was found, the layers around it, and what is there now."""

    def __init__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name
        self.is_own = name in vars(owner)
        self.found = self.current = getattr(owner, name)
        self.layers: list[Layer] = []

    def rebuild(self) -> None:
        if getattr(self.owner, self.name) is not self.current:
            return  # somebody else wrapped ours: our layers stay below theirs, where they do nothing
        if not self.layers and not self.is_own:
            delattr(self.owner, self.name)
            return
        self.current = self.found
        for layer in self.layers:
            self.current = layer(self.current)
        setattr(self.owner, self.name, self.current)


_methods: dict[tuple[type, str], _LayeredMethod] = {}


@contextmanager
def layered(owner: type, name: str, layer: Layer) -> Iterator[None]:
    """Wrap a method of a class for the block; blocks may overlap, also in threads, and end in any order.

    If somebody else has wrapped the method in the meantime, it cannot be put back without losing their
    wrapper. So a layer must do nothing where it is not wanted.
    """
    with _lock:
        method = _methods.setdefault((owner, name), _LayeredMethod(owner, name))
        method.layers.append(layer)
        method.rebuild()
    try:
        yield
    finally:
        with _lock:
            method.layers.remove(layer)
            method.rebuild()
            if not method.layers:
                del _methods[owner, name]
