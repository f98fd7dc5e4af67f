"""Convert nested structures to JSON and named tensors, and back, without running any code from them.

A batch may nest dicts, lists, tuples and objects that contain tensors. Values that JSON cannot represent are
written as ``{"type": ...}``; a tensor becomes a name in the safetensors file. An object is read back as a
namespace with the same fields, never as an instance of its original class, since that class is code.

Containers are encoded level by level. So the parts that are left out of a batch that is too large are deep
inside it, and a large part does not displace the tensors beside it.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections import deque, namedtuple
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import safetensors.torch
import torch
from torch import Tensor, nn

from halfguard.errors import RecordError
from halfguard.step.nested import MAX_NODES, attributes

_MAX_DEPTH = 64
_MAX_PROBLEMS = 20
_MAX_NAME = 200  # characters of a tensor's name, in a batch
_MAX_KEY = 100  # characters of a key in such a name
_MAX_BITS = 1000  # of an integer: Python does not convert one of more than 4300 digits
_ROW = 64  # plain values in a list that count as one node
_TEXT = 1024  # characters that count as one node
_CLOSED = (nn.Module, type, FunctionType, MethodType, ModuleType)

_Owners = tuple[Any, ...]  # containers from the root to the present value


class Encoder:
    """Collects the tensors of a structure by name, and lists the values that it had to leave out."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.problems: list[str] = []
        self._left_out_count = 0
        self._nodes = math.inf  # how many more may be encoded; finite only for a batch
        # containers to fill: the list to append to, keys and values, whether keys are written, name, owners
        self._waiting: deque[tuple[list[Any], list[tuple[Any, Any]], bool, str, _Owners]] = deque()

    def encode(self, value: Any, name: str) -> Any:
        """Return the structure as JSON; tensors go to ``tensors`` under names that start with ``name``."""
        body = self._value(value, name, ())
        while self._waiting:
            target, entries, with_keys, prefix, owners = self._waiting.popleft()
            for index, (key, item) in enumerate(entries):
                encoded = self._value(item, self._inner_name(prefix, key, index), owners)
                target.append([key, encoded] if with_keys else encoded)
        return body

    def encode_batch(self, batch: Any, name: str) -> Any:
        """Return a batch as JSON. It may hold anything, so the work is bounded and nothing in it raises."""
        self._nodes = MAX_NODES
        try:
            return self.encode(batch, name)
        finally:
            self._nodes = math.inf
            self._waiting.clear()

    @property
    def _in_batch(self) -> bool:
        return self._nodes < math.inf

    def _value(self, value: Any, name: str, owners: _Owners) -> Any:
        try:
            if len(owners) > _MAX_DEPTH:
                return self.leave_out(name, "nested too deeply")
            if value is None or isinstance(value, bool | str | int | float):
                return self._scalar(value, name)
            if isinstance(value, Tensor):
                keep = self._batch_tensor if self._in_batch else self._tensor
                return keep(value, self._unused_name(name))
            numpy = sys.modules.get("numpy")
            if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
                return self._array(value, self._unused_name(name))
            return self._container(value, name, owners)
        except Exception as error:
            if not self._in_batch:
                raise
            return self.leave_out(name, f"a {type(value).__name__} ({type(error).__name__})")

    def _scalar(self, value: Any, name: str) -> Any:
        """Return a plain value, and one of a subclass as its base class."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            if not (self._pay(len(text) // _TEXT) and _is_unicode(text)):
                return self.leave_out(name, f"a string of {len(text)} characters")
            return text
        if isinstance(value, float):
            number = float(value)
            return number if math.isfinite(number) else {"type": "float", "value": str(number)}
        if int.bit_length(value) > _MAX_BITS:
            return self.leave_out(name, f"an integer of {int.bit_length(value)} bits")
        return int(value)

    def _tensor(self, value: Tensor, name: str) -> Any:
        plain = _local(value)
        if plain.layout is not torch.strided or plain.is_nested:
            return self.leave_out(name, f"a tensor of layout {plain.layout}")
        self.tensors[name] = plain
        return {"type": "tensor", "name": name}

    def _batch_tensor(self, value: Tensor, name: str) -> Any:
        """Keep a tensor if a safetensors file can hold its data; complex numbers may become pairs."""
        plain, kind = _local(value), "tensor"
        why = _unfit(plain)
        if not why:
            plain = plain.as_subclass(Tensor).resolve_conj().resolve_neg()
            if plain.is_complex() and not can_be_stored(plain.dtype):
                plain, kind = torch.view_as_real(plain), "complex"
            why = "" if can_be_stored(plain.dtype) else f"a tensor of dtype {plain.dtype}"
        if why:
            return self.leave_out(name, why)
        self.tensors[name] = plain
        return {"type": kind, "name": name}

    def _array(self, value: Any, name: str) -> Any:
        """Keep an array or a scalar of NumPy as a tensor, with a note of what it was."""
        numpy = sys.modules["numpy"]
        array = numpy.asarray(value)
        if array.dtype.kind not in "biufc" or array.dtype.char in "gG":  # long doubles
            return self.leave_out(name, f"an array of dtype {array.dtype}")
        if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about read-only arrays: nothing writes to this tensor
            tensor = torch.from_numpy(array)
        note = "array" if isinstance(value, numpy.ndarray) else "scalar"
        return self._batch_tensor(tensor, name) | {"numpy": note}

    def _container(self, value: Any, name: str, owners: _Owners) -> Any:
        if any(owner is value for owner in owners):
            return self.leave_out(name, f"a {type(value).__name__} that contains itself")
        if isinstance(value, list | tuple):
            names = getattr(value, "_fields", None) if isinstance(value, tuple) else None
            if names and len(names) == len(value):
                fields = zip(names, value, strict=True)
                return self._open(value, "namedtuple", fields, name, owners)
            kind = "list" if isinstance(value, list) else "tuple"
            if self._is_plain_row(value):
                return {"type": kind, "items": list(value)}
            return self._open(value, kind, enumerate(value), name, owners)
        if isinstance(value, Mapping):
            return self._open(value, "dict", value.items(), name, owners)
        if not isinstance(value, _CLOSED) and (self._in_batch or not callable(value)):
            held = self._limited(attributes(value))
            store = dict(held).get("_store")  # of a torch_geometric batch
            if isinstance(store, Mapping):
                held = self._limited(store.items())
            if any(map(_is_public, held)) or (not held and type(value).__dictoffset__):
                return self._open(value, "object", held, name, owners)
        return self.leave_out(name, f"a {type(value).__name__}")

    def _open(
        self, value: Any, kind: str, entries: Iterable[Any], name: str, owners: _Owners
    ) -> Any:
        """Return a container that ``encode`` fills when its level is reached."""
        taken = self._limited(entries)
        text = sum(len(key) for key, _ in taken if isinstance(key, str))
        if not self._pay(len(taken) + 1 + text // _TEXT):
            self._pay(min(len(taken) // _ROW, int(self._nodes)))  # for the attempt
            return self.leave_out(name, f"a {type(value).__name__} with too many values")
        if kind == "dict" and not all(map(_is_key, taken)):
            return self.leave_out(name, "a mapping whose keys are neither text nor integers")
        if kind == "object":
            taken = list(filter(_is_public, taken))
        target: list[Any] = []
        self._waiting.append((target, taken, kind not in {"list", "tuple"}, name, (*owners, value)))
        return {"type": kind, "fields" if kind in {"object", "namedtuple"} else "items": target}

    def _is_plain_row(self, values: Sequence[Any]) -> bool:
        """Return whether a list needs no encoding, and pay for it: finite numbers only, or strings only."""
        if not self._pay(len(values) // _ROW):
            return False
        kinds = set(map(type, values))
        if kinds <= {int, float, bool}:
            try:
                return all(map(math.isfinite, values))
            except OverflowError:  # a large integer
                return False
        enough = kinds == {str} and self._pay(sum(map(len, values)) // _TEXT)
        return enough and _is_unicode("".join(values))

    def _limited(self, entries: Iterable[Any]) -> list[Any]:
        """Return the entries, or so many of them that the budget is exceeded."""
        return list(islice(entries, int(self._nodes) + 1) if self._in_batch else entries)

    def _pay(self, nodes: int) -> bool:
        """Take nodes from the budget; return False, and take none, if it is too small."""
        enough = nodes <= self._nodes
        self._nodes -= nodes if enough else 0
        return enough

    def _inner_name(self, name: str, key: Any, index: int) -> str:
        if not self._in_batch:
            return f"{name}.{key}"
        fit = not isinstance(key, str) or (len(key) <= _MAX_KEY and key.isprintable())
        return f"{name[:_MAX_NAME]}.{key if fit else f'#{index}'}"

    def _unused_name(self, name: str) -> str:
        while name in self.tensors:
            name = f"{name}~{len(self.tensors)}"
        return name

    def leave_out(self, name: str, why: str) -> dict[str, str]:
        """Note a value that is not kept, and return what is written in its place."""
        self._left_out_count += 1
        more = self._left_out_count - _MAX_PROBLEMS
        del self.problems[_MAX_PROBLEMS:]
        self.problems.append(
            f"{name}: {why} cannot be saved" if more <= 0 else f"{more} more values cannot be saved"
        )
        return {"type": "left out", "why": why}


class LeftOut:
    """A value that the incident could not keep. It may stay unused; every use of it raises a RecordError."""

    def __init__(self, why: str) -> None:
        self._why = why

    def _raise(self, *_: Any) -> NoReturn:
        raise RecordError(
            f"The incident does not contain the whole batch: {self._why} could not be saved."
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked by copy and the like, which do not use the value
            raise AttributeError(name)
        self._raise()

    __getitem__ = __iter__ = __len__ = __bool__ = __call__ = __float__ = __int__ = _raise
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _raise


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)  # of a DTensor
    local: Tensor = tensor.detach() if to_local is None else to_local()
    return local


def _unfit(tensor: Tensor) -> str:
    """Return why a tensor has no data that can be written, or an empty string."""
    if tensor.is_meta or tensor.is_quantized:
        return f"a {'meta' if tensor.is_meta else 'quantized'} tensor"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"a {'nested tensor' if tensor.is_nested else f'tensor of layout {tensor.layout}'}"
    own = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return f"a {type(tensor).__name__}" if own else ""


@functools.cache
def can_be_stored(dtype: torch.dtype) -> bool:
    """Return whether a safetensors file can hold tensors of a dtype."""
    try:
        written = safetensors.torch.save({"x": torch.empty(1, dtype=dtype)})
        return safetensors.torch.load(written)["x"].dtype is dtype
    except Exception:  # noqa: BLE001 - each version of safetensors has its own error
        return False


def _is_unicode(text: str) -> bool:
    """Return whether a string can be written as UTF-8; file names with unknown bytes cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _is_key(entry: tuple[Any, Any]) -> bool:
    key = entry[0]
    if isinstance(key, str):
        return _is_unicode(key)
    return isinstance(key, int) and int.bit_length(key) <= _MAX_BITS


def _is_public(entry: tuple[Any, Any]) -> bool:
    return isinstance(entry[0], str) and not entry[0].startswith("_") and _is_unicode(entry[0])


def decode(value: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Rebuild the structure, with tensors from ``tensors``, and ``LeftOut`` for the values that it lacks."""
    if depth > _MAX_DEPTH:
        raise RecordError("A structure in the incident is nested too deeply.")
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if not isinstance(value, dict):
        raise RecordError(f"A structure in the incident contains a {type(value).__name__}.")
    try:
        return _decode(value, tensors, depth + 1)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RecordError(f"A structure in the incident is damaged: {error!r}.") from error


def _decode(value: dict[str, Any], tensors: Mapping[str, Tensor], depth: int) -> Any:
    kind = value["type"]
    if kind in {"tensor", "complex"}:
        tensor = tensors[value["name"]]
        tensor = torch.view_as_complex(tensor) if kind == "complex" else tensor
        return tensor if "numpy" not in value else _as_numpy(tensor, value["numpy"])
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
        return LeftOut(str(value["why"]))
    raise RecordError(f"A structure in the incident is of an unknown type {kind!r}.")


def _as_numpy(tensor: Tensor, kind: str) -> Any:
    array = tensor.cpu().numpy()
    return array[()] if kind == "scalar" else array
