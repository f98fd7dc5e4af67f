"""Which loss was scaled, and by which scaler; what cannot be known counts as scaled, and nobody is blamed.

A loss that a scaler has scaled is known as long as it lives. The node that scaled it is marked, so that a sum
or a part of it is found through its graph.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_MARK = "halfguard: scaled"  # in the metadata of a node
_MOST_NODES = 5_000  # of a graph that are looked at


@dataclass(frozen=True, eq=False)
class Scaled:
    """A loss that a scaler has scaled."""

    scaled: weakref.ref[Tensor]
    raw: Tensor
    scaler: weakref.ref[Any]


@dataclass
class ScaledLosses:
    """The scaled losses that are alive, and the scalers that have scaled or were read."""

    reads: int = 0  # of a scale, by the script
    _known: dict[int, Scaled] = field(default_factory=dict)
    _scalers: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    # Scalers whose scale was read since their last update: a loss may be multiplied by it.
    _read: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    # Numbers without a graph that a scaler has scaled: a loss may be multiplied by them.
    _factors: list[weakref.ref[Tensor]] = field(default_factory=list)

    def note(self, scaler: Any, scaled: Any, raw: Any) -> None:
        """Note a loss, or a list of them, that a scaler has scaled."""
        for one, before in _pairs(scaled, raw):
            node: Any = one.grad_fn
            if node is None:
                self._factors.append(weakref.ref(one))
                continue
            key = id(one)
            node.metadata[_MARK] = True
            gone = weakref.ref(one, lambda _, key=key: self._known.pop(key, None))  # type: ignore[misc]
            self._known[key] = Scaled(gone, before, weakref.ref(scaler))
            self._scalers.add(scaler)

    def note_reading(self, scaler: Any) -> None:
        """Note that the script has read the scale."""
        self.reads += 1
        self._read.add(scaler)

    def note_update(self, scaler: Any) -> None:
        """Note that the scale may be another one now."""
        self._read.discard(scaler)

    def has_scaled(self, scaler: Any) -> bool:
        """Return whether a scaler was seen to scale a loss."""
        return scaler in self._scalers

    @property
    def may_scale_by_hand(self) -> bool:
        """Return whether the script has ever read a scale, or holds a number that a scaler has scaled."""
        return self.reads > 0 or any(one() is not None for one in self._factors)

    @property
    def was_read(self) -> bool:
        """Return whether a scale was read since the last update of its scaler."""
        return bool(self._read)

    def get(self, tensor: Tensor) -> Scaled | None:
        """Return what is known of a scaled loss."""
        one = self._known.get(id(tensor))
        return one if one is not None and one.scaled() is tensor else None

    def find_in(self, outputs: list[Tensor], gradients: Any) -> bool | None:
        """Return whether a scaled loss is in the graph of outputs; None if the script may have scaled them.

        That is also unknown of a graph that is too large to search.
        """
        if not self._scalers and not self._read:
            return False
        for index, node in enumerate(nodes_behind(outputs)):
            if index >= _MOST_NODES:
                return None
            if _MARK in node.metadata:
                return True
        given = [one for one in gradients if isinstance(one, Tensor)]
        by_hand = self.was_read or not all(bool((one == 1).all()) for one in given)
        return None if by_hand else False


def nodes_behind(outputs: list[Tensor]) -> Iterator[Any]:
    """Yield the nodes of the graph that made some tensors, each once, the last ones first."""
    waiting = deque(output.grad_fn for output in outputs)
    seen = set[Any]()
    while waiting:
        node = waiting.popleft()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def _pairs(scaled: Any, raw: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what a scaler has scaled, and what it was before; it takes a loss or a list of them."""
    if isinstance(scaled, Tensor) and isinstance(raw, Tensor):
        yield scaled, raw
    elif isinstance(scaled, list | tuple) and isinstance(raw, list | tuple):
        for pair in zip(scaled, raw, strict=False):
            yield from _pairs(*pair)
