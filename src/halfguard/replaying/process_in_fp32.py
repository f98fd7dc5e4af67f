"""Run the rest of a process in another precision, whatever its script asks for.

In FP32 autocast is off, half parameters and optimizer state become FP32, and a function mode lifts half
arguments of every call and rewrites half dtypes. Custom kernels and frameworks that keep half weights outside
of torch's optimizers (DeepSpeed) are not reached.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from halfguard.precision.modes import HALF_DTYPES, without_autocast
from halfguard.replaying.function_modes import (
    Place,
    map_arguments,
    user_place,
    writes_first,
)

# Calls that must see their own tensor.
_AS_THEY_ARE = frozenset({
    "__get__", "__set__", "__delete__", "__deepcopy__", "__repr__", "requires_grad_", "retain_grad",
    "register_hook", "register_post_accumulate_grad_hook", "detach_", "data_ptr", "element_size",
    "is_floating_point", "untyped_storage", "storage", "numel", "size", "dim",
})  # fmt: skip

_MOST_CASTS = 5  # that are told
_DEVICES = ("cpu", "cuda")


@contextmanager
def process_in_fp32(
    parameters: Iterable[Tensor],
    optimizers: Iterable[torch.optim.Optimizer],
    casts: dict[Place, None],
) -> Iterator[FP32Arguments]:
    """Run all that follows in FP32, with these parameters and all others; then they are as before.

    Yield the mode: it is off inside the function that it intercepts, such as the one that starts a backward
    pass, and has to be entered there again.
    """
    found = {id(p): p for p in (*parameters, *_other_parameters()) if p.dtype in HALF_DTYPES}
    kept = [(parameter, parameter.data, parameter.grad) for parameter in found.values()]
    states = [(state, dict(state)) for one in optimizers for state in one.state.values()]
    default, were_on = torch.get_default_dtype(), [*map(torch.is_autocast_enabled, _DEVICES)]
    lift = FP32Arguments(casts)
    try:
        with without_autocast():
            for device in _DEVICES:
                torch.set_autocast_enabled(device, False)
            torch.clear_autocast_cache()
            if default in HALF_DTYPES:
                torch.set_default_dtype(torch.float32)
            with torch.no_grad():
                for parameter, data, grad in kept:
                    parameter.grad = None  # torch rejects a gradient of another dtype
                    parameter.data = data.float()
                    parameter.grad = None if grad is None else grad.float()
                for state, _ in states:
                    state.update({key: _wide(value) for key, value in state.items()})
            with lift:
                yield lift
    finally:
        torch.set_default_dtype(default)
        for device, is_on in zip(_DEVICES, were_on, strict=True):
            torch.set_autocast_enabled(device, is_on)
        for parameter, data, grad in kept:
            parameter.grad = None
            parameter.data, parameter.grad = data, grad
        for state, before in states:
            state.update(before)


def _other_parameters() -> list[Tensor]:
    """Return parameters that an optimizer may not have: frozen ones, or half ones beside FP32 copies.

    Where a library multiplies them in a function of its own, no argument of torch is lifted.
    """
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Parameter)]


class FP32Arguments(TorchFunctionMode):
    """Lifts half arguments of every call to FP32; ``casts`` gets the lines whose casts are left out."""

    def __init__(self, casts: dict[Place, None]) -> None:
        super().__init__()
        self._casts = casts

    def _note(self) -> None:
        place = user_place() if len(self._casts) < _MOST_CASTS else None
        if place is not None:
            self._casts.setdefault(place)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in (Tensor.half, Tensor.bfloat16):
            self._note()
            return args[0].float()
        if any(isinstance(v, torch.dtype) and v in HALF_DTYPES for v in (*args, *kwargs.values())):
            self._note()
        if name in _AS_THEY_ARE:
            return func(*args, **kwargs)
        if writes_first(name) and args:  # what is written keeps its dtype
            return func(args[0], *map_arguments(_wide, args[1:]), **map_arguments(_wide, kwargs))
        return func(*map_arguments(_wide, args), **map_arguments(_wide, kwargs))


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_DTYPES else value
