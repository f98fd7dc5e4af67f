"""Convert nested structures to JSON and named tensors, and back, without running any code from them.

A batch may nest dicts, lists, tuples and objects that contain tensors. Values that JSON cannot represent are
written as ``{"type": ...}``; a tensor becomes a name in the safetensors file. An object is read back as a
namespace with the same fields, never as an instance of its original class, since that class is code.
"""

from __future__ import annotations

import dataclasses
import math
from collections import namedtuple
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from halfguard.errors import RecordError

_MAX_DEPTH = 64
_PLAIN = (str, bool, int, type(None))


class Encoder:
    """Collects the tensors of a structure by name, and lists the values that it had to leave out."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.problems: list[str] = []

    def encode(self, value: Any, name: str, depth: int = 0) -> Any:
        """Return the structure as JSON; tensors go to ``tensors`` under names that start with ``name``."""
        if depth > _MAX_DEPTH:
            return self._left_out(name, "nested too deeply")
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"type": "float", "value": str(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        return self._container(value, name, depth + 1)

    def _tensor(self, value: Tensor, name: str) -> Any:
        local = getattr(value, "to_local", None)
        plain = value.detach() if local is None else local()
        if plain.layout.__str__() != "torch.strided":
            return self._left_out(name, f"a tensor of layout {plain.layout}")
        self.tensors[name] = plain
        return {"type": "tensor", "name": name}

    def _container(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, Mapping):
            pairs = [
                (key, self.encode(item, f"{name}.{key}", depth)) for key, item in value.items()
            ]
            if not all(isinstance(key, str | int) for key, _ in pairs):
                return self._left_out(name, "a mapping whose keys are neither text nor integers")
            return {"type": "dict", "items": [[key, item] for key, item in pairs]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = dict(zip(value._fields, value, strict=True))
            return {"type": "namedtuple", "fields": self._fields(fields, name, depth)}
        if isinstance(value, list | tuple):
            items = [
                self.encode(item, f"{name}.{index}", depth) for index, item in enumerate(value)
            ]
            return {"type": "list" if isinstance(value, list) else "tuple", "items": items}
        if dataclasses.is_dataclass(value) or (hasattr(value, "__dict__") and not callable(value)):
            fields = {key: item for key, item in vars(value).items() if not key.startswith("_")}
            return {"type": "object", "fields": self._fields(fields, name, depth)}
        return self._left_out(name, f"a {type(value).__name__}")

    def _fields(self, fields: Mapping[str, Any], name: str, depth: int) -> list[list[Any]]:
        return [[key, self.encode(item, f"{name}.{key}", depth)] for key, item in fields.items()]

    def _left_out(self, name: str, why: str) -> Any:
        self.problems.append(f"{name}: {why} cannot be kept")
        return {"type": "left out", "why": why}


def encode(value: Any, name: str) -> tuple[Any, dict[str, Tensor], list[str]]:
    """Return a structure as JSON, its tensors by name, and the values that were left out."""
    encoder = Encoder()
    return encoder.encode(value, name), encoder.tensors, encoder.problems


def decode(value: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Rebuild the structure, with tensors from ``tensors``."""
    if depth > _MAX_DEPTH:
        raise RecordError("A structure in the incident is nested too deeply.")
    if isinstance(value, (*_PLAIN, float)):
        return value
    if not isinstance(value, dict):
        raise RecordError(f"A structure in the incident holds a {type(value).__name__}.")
    try:
        return _decode(value, tensors, depth + 1)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"A structure in the incident is damaged: {error!r}.") from error


def _decode(value: dict[str, Any], tensors: Mapping[str, Tensor], depth: int) -> Any:
    kind = value["type"]
    if kind == "tensor":
        return tensors[value["name"]]
    if kind == "float":
        return float(value["value"])
    if kind in {"list", "tuple"}:
        items = [decode(item, tensors, depth) for item in value["items"]]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: decode(item, tensors, depth) for key, item in value["items"]}
    if kind in {"object", "namedtuple"}:
        fields = {str(key): decode(item, tensors, depth) for key, item in value["fields"]}
        if kind == "object":
            return SimpleNamespace(**fields)
        return namedtuple("Batch", fields)(**fields)
    if kind == "left out":
        raise RecordError(
            f"The incident lacks a part of the batch: {value['why']} could not be kept."
        )
    raise RecordError(f"A structure in the incident is of an unknown type {kind!r}.")
