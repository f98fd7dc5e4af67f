"""Run a step in float64, as the reference of what is meant.

Every floating tensor is converted at every call, so the user's model needs no conversion, and a cast to half
in the user's code does not lower anything. Gradients arrive at the parameters in the parameters' dtype.
Random numbers are drawn in float32, because float64 uses other ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from halfguard.replaying.substitution import run_backward, writes_first

_CASTS = ("half", "bfloat16", "float", "double")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RANDOM = ("rand", "bernoulli", "normal", "uniform", "multinomial", "exponential", "gumbel")


class InFloat64(TorchFunctionMode):
    """Runs every call in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is Tensor.backward:
            with self:  # the backward pass may recompute checkpointed blocks
                return run_backward(args[0])
        if name in ("__get__", "__set__", "requires_grad_", "data_ptr"):
            return func(*args, **kwargs)
        if name in _CASTS or (name in ("to", "type") and _has_float_dtype(args, kwargs)):
            return _double(args[0])
        if any(word in name for word in _RANDOM):
            return tree_map(_double, func(*tree_map(_single, args), **tree_map(_single, kwargs)))
        kept = 1 if writes_first(name) else 0
        kwargs = {key: torch.float64 if value in _FLOATS else value
                  for key, value in tree_map(_double, kwargs).items() if key != "out"}  # fmt: skip
        return func(*args[:kept], *tree_map(_double, tuple(args[kept:])), **kwargs)


def _has_float_dtype(args: Any, kwargs: Any) -> bool:
    return any(isinstance(arg, torch.dtype) and arg in _FLOATS for arg in (*args, *kwargs.values()))


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
