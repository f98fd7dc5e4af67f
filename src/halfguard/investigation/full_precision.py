"""Force the rest of a process into FP32, or its autocast into BF16, whatever the script asks for.

Autocast is switched off, half parameters and optimizer state become FP32, and a function mode lifts half
arguments of every call and rewrites half dtypes. Custom kernels and frameworks that keep half weights
outside of torch's optimizers (DeepSpeed) are not reached.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from halfguard.precision.modes import HALF_DTYPES, without_autocast

# Calls that must see their own tensor.
_AS_THEY_ARE = frozenset(
    {
        *("__get__", "__set__", "__delete__", "requires_grad_", "register_hook", "detach_"),
        *(
            "data_ptr",
            "element_size",
            "is_floating_point",
            "__deepcopy__",
            "__repr__",
            "retain_grad",
        ),
        *(
            "untyped_storage",
            "numel",
            "size",
            "dim",
            "storage",
            "register_post_accumulate_grad_hook",
        ),
    }
)

_FOR_GOOD: list[Any] = []  # contexts that are never left; one that is forgotten would end


def force_fp32(parameters: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Run the rest of this process in FP32."""
    context = without_autocast()
    context.__enter__()
    _FOR_GOOD.append(context)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    torch.clear_autocast_cache()
    if torch.get_default_dtype() in HALF_DTYPES:
        torch.set_default_dtype(torch.float32)
    for parameter in (*parameters, *_frozen_parameters()):
        if parameter.dtype in HALF_DTYPES:
            grad, parameter.grad = parameter.grad, None  # torch rejects a gradient of another dtype
            parameter.data = parameter.data.float()
            parameter.grad = None if grad is None else grad.float()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key, value in state.items():
                state[key] = _wide(value)
    lift = FP32Arguments()
    lift.__enter__()  # type: ignore[no-untyped-call]
    _lift_in_backward(lift)


def _frozen_parameters() -> list[Tensor]:
    """Return parameters that no optimizer has, such as those of a model with adapters.

    Where a library multiplies them in a function of its own, no argument of torch is lifted.
    """
    found = [one for one in gc.get_objects() if issubclass(type(one), nn.Parameter)]
    return [one for one in found if not one.requires_grad]


def force_bf16() -> None:
    """Let every FP16 autocast region of the rest of this process be one of BF16."""
    enter: Any = torch.autocast.__enter__

    def enter_bf16(self: torch.autocast) -> Any:
        if self.fast_dtype is torch.float16:
            self.fast_dtype = torch.bfloat16
        return enter(self)

    torch.autocast.__enter__ = enter_bf16  # type: ignore[method-assign]
    for device in ("cpu", "cuda"):
        if torch.get_autocast_dtype(device) is torch.float16:
            torch.set_autocast_dtype(device, torch.bfloat16)
    torch.clear_autocast_cache()


class FP32Arguments(TorchFunctionMode):
    """Lifts half arguments of every call to FP32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in (Tensor.half, Tensor.bfloat16):
            return args[0].float()
        if name in _AS_THEY_ARE:
            return func(*args, **kwargs)
        if (
            name.endswith("_") and not name.endswith("__") and args
        ):  # what is written keeps its dtype
            return func(args[0], *tree_map(_wide, args[1:]), **tree_map(_wide, kwargs))
        return func(*tree_map(_wide, args), **tree_map(_wide, kwargs))


def _lift_in_backward(mode: FP32Arguments) -> None:
    """Keep the mode during backward passes: hooks, functions of the user, checkpointed blocks.

    A mode is off inside the function that it intercepts, which is what starts a backward pass.
    """
    original: Any = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return original(*args, **kwargs)

    for owner in (torch.autograd.graph, torch.autograd):
        owner._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF_DTYPES else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF_DTYPES else value
