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
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from halfguard.precision.modes import HALF_DTYPES, full_precision

Module = TypeVar("Module", bound=nn.Module)
_DEVICE = torch.accelerator.current_accelerator()  # what torch was built for; starts no driver
_ACCELERATOR = "cuda" if _DEVICE is None else _DEVICE.type  # CUDA's rules may be emulated


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
    # Two plain contexts, not a loop over devices: torch.compile follows these without a break.
    with full_precision("cpu"), full_precision(_ACCELERATOR):
        return forward(*[widened(value) for value in args], **widened(kwargs))


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
        names = [field.name for field in fields(value) if field.init]
        changes = _changes({name: getattr(value, name) for name in names})
        return replace(value, **changes) if changes else value
    return value


def _widened_mapping(value: Any) -> Any:
    changes = _changes(value)
    if not changes:
        return value
    make: Any = type(value)
    changed = {**value, **changes}
    # ModelOutput is a mapping that is made from its fields.
    return make(**changed) if is_dataclass(value) else make(changed)


def _changes(values: Mapping[Any, Any]) -> dict[Any, Any]:
    new = {key: widened(value) for key, value in values.items()}
    return {key: value for key, value in new.items() if value is not values[key]}


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
