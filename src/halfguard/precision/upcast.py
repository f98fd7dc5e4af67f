"""Frozen parameters in half, trainable ones in FP32: adapters over a frozen half base model.

A frozen weight gets no updates, so half loses nothing. A trained half weight loses every update
below half the spacing of its values (see ``master_weights``). If only few parameters are trained,
keeping those in FP32 is the simplest solution, and also removes the error of torch's GradScaler,
"Attempting to unscale FP16 gradients."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.formats import FP16
from halfguard.numerics.finite import find_poison
from halfguard.precision.modes import HALF_DTYPES


@torch.no_grad()
def upcast_trainable(model: nn.Module) -> list[str]:
    """Convert all trainable 16-bit parameters to FP32 in place, and return their names.

    The parameters remain the same objects, so an existing optimizer can still update them. If the optimizer
    has already stepped, its state is 16-bit; ``optimizer.load_state_dict(optimizer.state_dict())`` casts it.
    Call this function before you wrap the model in DDP. Run the model under ``torch.autocast``, which casts
    between the 16-bit base model and the FP32 adapters.
    """
    changed = []
    for name, param in model.named_parameters():
        if param.requires_grad and param.dtype in HALF_DTYPES:
            replace_data(param, param.data.float())
            changed.append(name)
    return changed


def replace_data(parameter: Tensor, data: Tensor) -> None:
    """Give a parameter other data, and its gradient their dtype."""
    grad, parameter.grad = parameter.grad, None  # torch rejects a gradient of another dtype
    parameter.data = data
    parameter.grad = None if grad is None else grad.to(data.dtype)


@contextmanager
def half_tensors_in_fp32(model: nn.Module, *, trained: bool = True) -> Iterator[None]:
    """Run the block with 16-bit weights and buffers in FP32; without ``trained``, only frozen weights.

    Gradients of these weights are FP32 inside the block, and 16-bit after it.
    """
    tensors = (*model.parameters(), *model.buffers())
    half = [t for t in tensors if t.dtype in HALF_DTYPES and (trained or not t.requires_grad)]
    kept = [(tensor, tensor.data) for tensor in half]
    try:
        for tensor, data in kept:
            tensor.data = data.float()
        yield
    finally:
        for tensor, data in kept:
            if isinstance(tensor, nn.Parameter):
                replace_data(tensor, data)
            else:
                data.copy_(tensor.data)  # running statistics were updated
                tensor.data = data


def half_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return ``model.state_dict()`` with floating-point tensors as float16 on the CPU, for evaluation.

    If a value is NaN or Inf, or is Inf in float16, an error names the tensor. Tied parameters remain one
    tensor.
    """
    state = model.state_dict(keep_vars=True)  # the parameters themselves, to recognize tied ones
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    _raise_if_nonfinite({n: t.detach() for n, t in tensors.items() if t.is_floating_point()})
    saved: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        if id(tensor) not in saved:
            dtype = torch.float16 if tensor.is_floating_point() else tensor.dtype
            # Always a copy: the result must not change when training continues.
            saved[id(tensor)] = tensor.detach().to(dtype, copy=True).cpu()
        state[name] = saved[id(tensor)]
    return state


def _raise_if_nonfinite(tensors: dict[str, Tensor]) -> None:
    bad = find_poison(tensors, target=FP16)
    if bad:
        raise UsageError(
            f"half_state_dict() would save values that are not finite in float16, in {len(bad)} of "
            f"{len(tensors)} tensors: {', '.join(map(str, bad))}. Nothing was returned.",
            cure=(
                "If values are NaN or Inf, use an earlier checkpoint. If they exceed 65504, save FP32 with "
                "model.state_dict(). Register an intended -Inf, as in a mask, with persistent=False."
            ),
        )


def cast_to_fp32(value: Any) -> Any:
    """Return ``value`` with its 16-bit tensors in float32; the same object if there are none."""
    return cast_floats(value, HALF_DTYPES, torch.float32)


def cast_floats(value: Any, dtypes: tuple[torch.dtype, ...], to: torch.dtype) -> Any:
    """Return a nested value with its tensors of ``dtypes`` in another one; the same object if it has none."""
    if isinstance(value, Tensor):
        return value.to(to) if value.dtype in dtypes else value
    if isinstance(value, Mapping):
        return _cast_mapping(value, dtypes, to)
    if isinstance(value, tuple | list):
        items = [cast_floats(item, dtypes, to) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        make: Any = type(value)
        return make(*items) if hasattr(value, "_fields") else make(items)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        changes = _changed_items({name: getattr(value, name) for name in names}, dtypes, to)
        return replace(value, **changes) if changes else value
    return value


def _cast_mapping(value: Any, dtypes: tuple[torch.dtype, ...], to: torch.dtype) -> Any:
    changes = _changed_items(value, dtypes, to)
    if not changes:
        return value
    make: Any = type(value)
    changed = {**value, **changes}
    # ModelOutput is a mapping that is constructed from its fields.
    return make(**changed) if is_dataclass(value) else make(changed)


def _changed_items(
    values: Mapping[Any, Any], dtypes: tuple[torch.dtype, ...], to: torch.dtype
) -> dict[Any, Any]:
    new = {key: cast_floats(value, dtypes, to) for key, value in values.items()}
    return {key: value for key, value in new.items() if value is not values[key]}
