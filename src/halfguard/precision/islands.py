"""``fp32_island(module)``: a module that computes in FP32, whatever the model around it does.

Inside, autocast is off for every device, CUDA's emulated rules included, and 16-bit inputs have been cast
to float32, in any nesting. What comes out is left in float32: rounding it back would overflow right there,
and autocast lowers it where the next matrix product wants that.

The island is the module's own ``forward``, wrapped: hooks, parameters and ``state_dict`` stay as they are,
a checkpointed block is an island again when it is computed again, and a deep copy is an island of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from halfguard.precision.modes import HALF_DTYPES, full_precision

Module = TypeVar("Module", bound=nn.Module)
_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "privateuseone")


def fp32_island(module: Module) -> Module:
    """Make ``module`` run in FP32, in place, and return it; a second call changes nothing.

    Half parameters and buffers of the module become FP32, as the same objects: an optimizer that was
    built before still holds them.
    """
    if not is_island(module):
        _widen(module)
        # A partial over a bound method, not a closure: copying the model then copies the island, too.
        module.forward = functools.partial(_run, module.forward)
    return module


def remove_island(module: Module) -> Module:
    """Undo ``fp32_island``, but for the dtype of parameters; returns the module."""
    wrapper = vars(module).get("forward")
    if isinstance(wrapper, functools.partial) and wrapper.func is _run:
        del module.forward
        original = wrapper.args[0]
        if getattr(original, "__func__", None) is not type(module).forward:
            module.forward = original  # somebody had replaced it before us
    return module


def is_island(module: nn.Module) -> bool:
    """Whether ``fp32_island`` was called on this very module."""
    wrapper = vars(module).get("forward")
    return isinstance(wrapper, functools.partial) and wrapper.func is _run


def _run(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with ExitStack() as off:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                off.enter_context(full_precision(device))
        return forward(*(widened(value) for value in args), **widened(kwargs))


def widened(value: Any) -> Any:
    """``value`` with its 16-bit tensors in float32; the same object if there are none."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    if isinstance(value, Mapping):
        return _widened_mapping(value)
    if isinstance(value, tuple | list):
        items = [widened(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        make: Any = type(value)
        return make(*items) if hasattr(value, "_fields") else make(items)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: new
            for field in fields(value)
            if field.init and (new := widened(old := getattr(value, field.name))) is not old
        }
        return replace(value, **changes) if changes else value
    return value


def _widened_mapping(value: Any) -> Any:
    changes = {key: new for key, old in value.items() if (new := widened(old)) is not old}
    if not changes:
        return value
    make: Any = type(value)
    if is_dataclass(value):  # ModelOutput is a mapping made from its fields
        return make(**(dict(value) | changes))
    return make({**value, **changes})


@torch.no_grad()
def _widen(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.dtype in HALF_DTYPES:
            grad, parameter.grad = parameter.grad, None  # torch refuses a gradient of another dtype
            parameter.data = parameter.data.float()
            parameter.grad = None if grad is None else grad.float()
    for owner in module.modules():
        for name, buffer in owner.named_buffers(recurse=False):
            if buffer.dtype in HALF_DTYPES:
                owner._buffers[name] = buffer.float()
