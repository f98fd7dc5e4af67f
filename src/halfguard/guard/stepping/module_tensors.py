"""Tensors that modules replace in their forward pass: hidden states, and buffers that are not tracked.

Truncated backpropagation keeps a hidden state as an attribute: ``self.h = h.detach()``. One NaN batch makes
it NaN, and every later step with it. A reference to the tensor at the start of the step is all that is
needed to put it back, so nothing is copied. Tensors that turn out to be written in place are handed to
``Buffers``, which copies them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from halfguard.guard.stepping.buffers import Buffers, Registry
from halfguard.numerics.finite import all_finite
from halfguard.precision.islands import cast_to_fp32
from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.nested import tensors_in

# Steps: attributes may appear at any time, and a hidden state is often None before the first step.
_SCAN_FIRST, _SCAN_EVERY = 3, 128
_OWN = frozenset(vars(nn.Module()))  # of every module
_DEEPEST = 8  # a linked list, or one that contains itself, is no hidden state
_MISSING = object()

# Registry and name of a tensor, its value at the start of the step, and its version then.
Reference = tuple[Registry, str, Any, int]


class ModuleTensors:
    """Remembers which tensors modules hold at the start of a step, and puts them back."""

    def __init__(self, model: nn.Module, buffers: Buffers, *, enabled: bool) -> None:
        self._model = model
        self._buffers = buffers
        self._enabled = enabled
        self._steps = 0
        self._places: list[tuple[Registry, str]] = []
        self._seen: dict[tuple[int, str], tuple[Registry, str]] = {}  # held a tensor once
        self._attributes: dict[int, Registry] = {}  # of modules that hold None in a tensor's place
        self.references: list[Reference] = []

    def keep(self) -> None:
        """Remember the present tensors."""
        if not self._enabled:
            return
        if self._steps < _SCAN_FIRST or self._steps % _SCAN_EVERY == 0:
            tracked = self._buffers.tracked()
            found = find_state(self._model, with_none=self._steps < _SCAN_FIRST - 1)
            places = {(id(r), name): (r, name) for r, name in found}
            # A hidden state that is None at the start of an epoch will be a tensor again.
            self._seen |= {key: (r, n) for key, (r, n) in places.items() if r[n] is not None}
            known = {key: place for key, place in self._seen.items() if place[1] in place[0]}
            self._places = [p for key, p in (known | places).items() if key not in tracked]
        self._steps += 1
        self.references = [
            (registry, name, value, _version(value))
            for registry, name in self._places
            if not _has_graph(value := registry.get(name, _MISSING))
        ]
        self._attributes = {id(r): dict(r) for r, _, value, _ in self.references if value is None}

    def restore(
        self, references: Sequence[Reference] | None = None, *, poisoned_only: bool = False
    ) -> None:
        """Put back what the step replaced; a tensor of another shape only if it is not finite.

        A cache that grew in the forward pass stays: other attributes may tell its size. With
        ``poisoned_only``, the steps since then may be good, and only what is not finite is put back.
        """
        for registry, name, old, _ in self.references if references is None else references:
            new = registry.get(name, _MISSING)
            if new is old:
                continue
            same = self._is_first(registry) if old is None else _same_shapes(old, new)
            if (same and not poisoned_only) or _became_bad(old, new):
                registry[name] = old

    def _is_first(self, registry: Registry) -> bool:
        """Return whether the step changed nothing but tensors of a module that held None so far."""
        before = self._attributes.get(id(registry))
        return before is not None and all(
            value is before.get(name, _MISSING) or _is_state(value)
            for name, value in registry.items()
        )

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Run the block with 16-bit tensors, such as a hidden state, in float32.

        What the block does not replace is 16-bit again afterwards.
        """
        cast = [
            (registry, name, value, cast_to_fp32(value))
            for registry, name, value, _ in self.references
            if any(tensor.dtype in HALF_DTYPES for tensor in tensors_in(value))
        ]
        for registry, name, _, wide in cast:
            registry[name] = wide
        try:
            yield
        finally:
            for registry, name, value, wide in cast:
                if registry.get(name) is wide:
                    registry[name] = value

    def track_written(self) -> None:
        """Let ``Buffers`` copy, from the next step on, the tensors that this step has written in place."""
        written = [
            (registry, name)
            for registry, name, value, version in self.references
            if version != _version(value) and registry.get(name) is value
        ]
        if not written:
            return
        for registry, name in written:
            self._buffers.track(registry, name)
        gone = {(id(registry), name) for registry, name in written}
        self._places = [(r, name) for r, name in self._places if (id(r), name) not in gone]
        self.references = [ref for ref in self.references if (id(ref[0]), ref[1]) not in gone]


def find_state(model: nn.Module, *, with_none: bool) -> Iterator[tuple[Registry, str]]:
    """Yield registry and name of every tensor that modules hold beside their parameters."""
    for module in model.modules():
        for name, value in vars(module).items():
            if name not in _OWN and (_is_state(value) or (with_none and value is None)):
                yield module.__dict__, name
        for name, value in module._buffers.items():
            if value is not None:
                yield module._buffers, name


def _is_state(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (tuple, list)):
        if not value or len(value) > 64 or depth > _DEEPEST:
            return False
        return all(_is_state(item, depth + 1) for item in value)
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _has_graph(value: Any) -> bool:
    """Return whether a reference would keep a graph, and its activations, in memory."""
    return any(tensor.requires_grad for tensor in tensors_in(value))


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def _same_shapes(old: Any, new: Any) -> bool:
    return [t.shape for t in tensors_in(old)] == [t.shape for t in tensors_in(new)]


def _became_bad(old: Any, new: Any) -> bool:
    """Return whether only the new state is not finite. This reads the device; only bad steps need it."""
    return all_finite(tensors_in(old)) and not all_finite(tensors_in(new))
