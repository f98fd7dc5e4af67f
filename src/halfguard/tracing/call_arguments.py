"""The arguments of one dispatched call by the names of its schema, and the same call in FP32.

The call in FP32 must change nothing: arguments that the operation writes to are replaced by copies, and
random operations are not repeated at all, since they would advance a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose ``run`` gets every operation inside the block, and must run it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation, and look at it."""
        raise NotImplementedError


class TensorArgument(NamedTuple):
    """A tensor among the arguments of a call."""

    name: str
    tensor: Tensor
    is_written: bool


def bind_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[Any, Any]]:
    """Return each argument of the schema that was given, with its value; positional ones first."""
    schema = func._schema.arguments
    values = [*zip(schema, args, strict=False)]
    return values + [(a, kwargs[a.name]) for a in schema[len(args) :] if a.name in kwargs]


def tensor_arguments(bound: Sequence[tuple[Any, Any]]) -> Iterator[TensorArgument]:
    """Yield the tensors among bound arguments, those of lists one by one."""
    for argument, value in bound:
        for tensor in tensors_in(value):
            yield TensorArgument(argument.name, tensor, is_written(argument))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield a tensor, or the tensors of a list."""
    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, Tensor):
            yield item


def results_of(out: Any, written: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that a call made, then those that it wrote to."""
    ours = {id(tensor) for tensor in written}
    return [*(tensor for tensor in tensors_in(out) if id(tensor) not in ours), *written]


def is_written(argument: Any) -> bool:
    """Return whether a call writes to this argument of its schema."""
    return argument.alias_info is not None and argument.alias_info.is_write


WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
for _name in ("AutocastCUDA", "AutocastMPS", "AutocastXPU", "AutocastPrivateUse1"):
    _AUTOCAST |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

Substitute = Callable[[Tensor], Tensor]


class Call:
    """One call of an operation: its arguments by name, and how to repeat it in FP32."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.func = func
        self._values = bind_arguments(func, args, kwargs)
        self._positional = len(args)
        self.tensors = list(tensor_arguments(self._values))
        self.written = [one.tensor for one in self.tensors if one.is_written]

    @property
    def is_random(self) -> bool:
        """True if the call draws random numbers."""
        if torch.Tag.nondeterministic_seeded not in self.func.tags:
            return False
        given = {a.name: value for a, value in self._values}
        for argument in self.func._schema.arguments:
            if argument.name == "dropout_p":  # fused attention
                return bool(given.get("dropout_p", argument.default_value) != 0)
        return True

    @property
    def can_repeat(self) -> bool:
        """True if the operation is one of torch's own, without effects beyond its arguments."""
        return self.func.namespace in ("aten", "prims") and not self.is_random

    def in_fp32(self, substitute: Substitute) -> list[Tensor]:
        """Repeat the call; return its tensor outputs, then the tensors that it wrote to."""
        fill = partial(filled, leaf=Tensor, read=substitute, dtypes=WIDE)
        with undispatched():
            return repeat_call(self.func, self._values, self._positional, fill)


def filled(
    value: Any,
    *,
    leaf: type[Any],
    read: Callable[[Any], Tensor],
    dtypes: Mapping[torch.dtype, torch.dtype],
) -> Any:
    """Return an argument with ``read(leaf)`` in place of its leaves, and other dtypes."""
    if isinstance(value, leaf):
        return read(value)
    if isinstance(value, list | tuple):
        return [filled(item, leaf=leaf, read=read, dtypes=dtypes) for item in value]
    return dtypes.get(value, value) if isinstance(value, torch.dtype) else value


def repeat_call(
    func: Any, bound: Sequence[tuple[Any, Any]], positional: int, fill: Callable[[Any], Any]
) -> list[Tensor]:
    """Repeat a call with other arguments, and copies of those that it writes to.

    Return what it makes, then what it writes to.
    """
    written: list[Tensor] = []
    values: dict[str, Any] = {}
    for argument, value in bound:
        new = fill(value)
        # Statistics are updated without being declared.
        if is_written(argument) or argument.name.startswith("running_"):
            new = tree_map_only(Tensor, torch.clone, new)
        if is_written(argument):
            written += tensors_in(new)
        values[argument.name] = False if argument.name == "half_to_float" else new
    args = [values.pop(argument.name) for argument, _ in bound[:positional]]
    return results_of(func(*args, **values), written)


@contextmanager
def undispatched() -> Iterator[None]:
    """Run a block below all dispatch modes and below autocast, as if nobody watched."""
    with no_dispatch(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        yield


def to_wide(tensor: Tensor) -> Tensor:
    """Return a half tensor in FP32, and any other as it is."""
    wide = WIDE.get(tensor.dtype)
    return tensor if wide is None else tensor.to(wide)
