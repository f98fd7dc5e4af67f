"""The floating-point tensors in whatever a module returns, each with its place in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor


def tensors_in(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield ``("logits", tensor)``, ``("hidden.1", tensor)`` ...; a bare tensor has the path "".

    Tuples, named tuples, lists, mappings (ModelOutput is one) and dataclasses are opened, in any
    nesting. What cannot hold a non-finite number is left out: integers, and tensors without elements.
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, _join(path, str(key)))
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        for key, item in zip(names, value, strict=True):
            yield from tensors_in(item, _join(path, str(key)))
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name, None), _join(path, item.name))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
