"""Function modes: they see every call of torch, also those inside a backward pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from halfguard.tracing.source import user_frame

Place = tuple[str, int]  # file and line


def name_lines(places: Iterable[Place]) -> str:
    """Return lines as part of a sentence, file by file and in order: ``a.py:3 and 7 and b.py:5``."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for file, line in places:
        numbers[Path(file).name].add(line)
    of_files = {file: " and ".join(map(str, sorted(lines))) for file, lines in numbers.items()}
    return " and ".join(f"{file}:{lines}" for file, lines in of_files.items())


class FunctionMode(TorchFunctionMode):
    """Sees every call of torch, and passes it on; subclasses change ``call``."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            return self._run_backward(*args, **kwargs)
        if func is torch.autograd.backward:
            return self._run_backward_of_all(*args, **kwargs)
        return self.call(func, args, kwargs)

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a call of torch that is no backward pass."""
        return func(*args, **kwargs)

    def _run_backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        self._run_backward_of_all(loss, gradient, retain_graph, create_graph, inputs=inputs)

    def _run_backward_of_all(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> None:
        """Run the backward pass with this mode on.

        Torch switches a mode off inside the calls that it sees, but a backward pass may compute checkpointed
        blocks again. Torch's engine is no such call, and those who observe it still see the losses.
        """
        losses = _tuple(tensors)
        given = _tuple(grad_tensors if grad_variables is None else grad_variables)
        pairs = zip(losses, given or (None,) * len(losses), strict=True)
        gradients = tuple(_gradient(loss, gradient) for loss, gradient in pairs)
        with self:
            torch.autograd.graph._engine_run_backward(
                losses,
                gradients,
                create_graph if retain_graph is None else retain_graph,
                create_graph,
                _tuple(inputs),
                allow_unreachable=True,
                accumulate_grad=True,
            )


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, dict):
        return tuple(value.values())
    is_many = isinstance(value, Iterable) and not isinstance(
        value, Tensor | torch.autograd.graph.GradientEdge
    )
    return tuple(value) if is_many else (value,)


def _gradient(loss: Any, given: Tensor | None) -> Tensor | None:
    """Return the gradient of a loss, as torch makes it if none is given."""
    if given is not None or not loss.requires_grad:
        return given
    if loss.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return torch.ones_like(loss)


def writes_first(name: str) -> bool:
    """Return whether a torch function changes its first argument in place."""
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or (name.startswith("__i") and name != "__invert__")


def map_arguments(change: Callable[[Any], Any], arguments: Any) -> Any:
    """Change all arguments of a call, also nested ones; a ``torch.Size`` stays what it is.

    ``tensor.new(size)`` takes a size for a shape and another tuple for values.
    """
    return tree_map(change, arguments, is_leaf=lambda one: isinstance(one, torch.Size))


def user_place() -> Place | None:
    """Return the innermost line of the user's code that is running."""
    frame = user_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


_CASTS = ("half", "bfloat16", "float", "double")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RANDOM = ("rand", "bernoulli", "normal", "uniform", "multinomial", "exponential", "gumbel")


class InFloat64(FunctionMode):
    """Runs every call in float64, as the reference of what is meant.

    Every floating tensor is converted at every call, so the user's model needs no conversion, and a cast to
    half in the user's code does not lower anything. Gradients arrive at the parameters in the parameters'
    dtype. Random numbers are drawn in float32, because float64 uses other ones.
    """

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "requires_grad_", "data_ptr"):
            return func(*args, **kwargs)
        if name in _CASTS or (name in ("to", "type") and _has_float_dtype(args, kwargs)):
            return _double(args[0])
        if any(word in name for word in _RANDOM):
            drawn = func(*map_arguments(_single, args), **map_arguments(_single, kwargs))
            return map_arguments(_double, drawn)
        kept = 1 if writes_first(name) else 0
        kwargs = {key: torch.float64 if value in _FLOATS else value
                  for key, value in map_arguments(_double, kwargs).items() if key != "out"}  # fmt: skip
        return func(*args[:kept], *map_arguments(_double, tuple(args[kept:])), **kwargs)


def _has_float_dtype(args: Any, kwargs: Any) -> bool:
    return any(isinstance(arg, torch.dtype) and arg in _FLOATS for arg in (*args, *kwargs.values()))


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
