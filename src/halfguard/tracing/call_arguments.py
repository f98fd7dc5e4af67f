"""The arguments of one dispatched call, by the names of its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor


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
