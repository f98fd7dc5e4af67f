"""CUDA's autocast rules on a CPU, so that what a laptop sees is what the GPU will see.

CPU autocast has rules of its own: in float16 it leaves softmax, norms, exp, log, pow and sum in half,
where CUDA computes them in float32. A range measured under it is not the GPU's, and neither is a failure.
``emulate_autocast`` switches the flags of both devices on and lets ``autocast_kernels`` apply CUDA's rules
to CPU tensors.

The flags are torch's own, and that is what makes the rest work: a region ``torch.autocast(...,
enabled=False)`` for either device clears them, and gradient checkpointing saves and restores them when it
recomputes a block, even after the region has ended. The one thing to add is that on a machine without
CUDA ``torch.autocast("cuda")`` must mean something: inside an emulated region, and while a backward pass
recomputes one, it sets the flags of both devices instead of warning that there is no CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import DefaultDeviceType

from halfguard.errors import UsageError
from halfguard.precision import autocast_kernels
from halfguard.precision.modes import Precision, autocast

_DTYPES = (torch.float16, torch.bfloat16)


class _Depth(threading.local):
    regions = 0


_depth = _Depth()


@contextmanager
def emulate_autocast(
    device_type: str = "cuda", *, dtype: torch.dtype = torch.float16
) -> Iterator[None]:
    """Run a forward pass on a CPU in the dtypes that ``torch.autocast(device_type)`` would choose.

    Tensors on a GPU follow the real rules meanwhile. Where the CPU has no half kernel for an operation
    that the GPU runs in half, torch raises as it does without autocast.
    """
    if device_type != "cuda":
        raise UsageError(
            f"emulate_autocast({device_type!r}): only the rules of 'cuda' are known.",
            cure="For the CPU's own rules use torch.autocast('cpu').",
        )
    if dtype not in _DTYPES:
        raise UsageError(
            f"emulate_autocast(dtype={dtype}): autocast lowers to a 16-bit dtype.",
            cure=f"Allowed: {', '.join(map(str, _DTYPES))}.",
        )
    autocast_kernels.install()
    _teach_autocast()
    before = [(device, _flags(device)) for device in ("cuda", "cpu")]
    _depth.regions += 1
    torch.autocast_increment_nesting()
    _forget_casts_at(nesting=1)
    try:
        for device, _ in before:
            _set_flags(device, (True, dtype))
        yield
    finally:
        for device, flags in before:
            _set_flags(device, flags)
        _depth.regions -= 1
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
            autocast_kernels.forget_casts()


def as_on_cuda(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass in ``precision``, with CUDA's rules also on a CPU."""
    if precision.autocast_dtype is not None and device.type == "cpu":
        return emulate_autocast("cuda", dtype=precision.autocast_dtype)
    return autocast(precision, device.type)


def _flags(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _set_flags(device: str, flags: tuple[bool, torch.dtype]) -> None:
    enabled, dtype = flags
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)


def _recomputing() -> bool:
    # Inside a backward pass a region is entered by checkpointing and by custom_bwd, which restore the
    # flags of the forward pass: CUDA's can have been on without CUDA only in an emulated one.
    return torch._C._current_graph_task_id() != -1 and not torch.cuda.is_available()


def _forget_casts_at(*, nesting: int) -> None:
    # Also where an outermost region begins: one that was entered before autocast was taught leaves by
    # the method that it had looked up then, and what was cast in it would serve the next step.
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting() == nesting:
        autocast_kernels.forget_casts()


@cache
def _teach_autocast() -> None:
    """Make ``torch.autocast("cuda")`` inside an emulated region set both devices' flags."""
    autocast = torch.amp.autocast_mode.autocast
    init: Any = autocast.__init__
    enter: Any = autocast.__enter__
    leave: Any = autocast.__exit__

    def __init__(  # noqa: N807
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        emulated = device_type == "cuda" and (_depth.regions > 0 or _recomputing())
        init(self, device_type, dtype, enabled and not emulated, cache_enabled)
        if emulated:
            self._enabled = enabled  # not disabled for want of a GPU

    def __enter__(self: Any) -> Any:  # noqa: N807
        was_on = self.device == "cuda" and torch.is_autocast_enabled("cuda")
        mirrored = self.device == "cuda" and (
            _depth.regions > 0 or (_recomputing() and (was_on or self._enabled))
        )
        self._halfguard_cpu = _flags("cpu") if mirrored else None
        enter(self)
        _forget_casts_at(nesting=1)
        if mirrored:
            _set_flags("cpu", (self._enabled, self.fast_dtype))
        return self

    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        result = leave(self, *error)
        if (before := getattr(self, "_halfguard_cpu", None)) is not None:
            _set_flags("cpu", before)
        _forget_casts_at(nesting=0)
        return result

    # Checkpointing restores the flags of the CPU and of one other device, which must be CUDA.
    DefaultDeviceType.set_device_type("cuda")
    # setattr: the methods of a class cannot be assigned in a typed way.
    for method in (__init__, __enter__, __exit__):
        setattr(autocast, method.__name__, method)
