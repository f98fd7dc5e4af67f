"""CUDA's autocast rules on a CPU, so that a laptop computes in the same dtypes as the GPU.

CPU autocast has its own rules: in float16 it leaves softmax, norms, exp, log, pow and sum in half, where
CUDA computes them in float32. So ranges and failures measured under CPU autocast are not the GPU's.
``emulate_autocast`` enables the flags of both devices, and ``autocast_kernels`` applies CUDA's rules to
CPU tensors.

Because the flags are torch's own, the rest works without changes: ``torch.autocast(..., enabled=False)``
for either device clears them, and gradient checkpointing saves and restores them when it recomputes a
block, even after the region has ended. Only ``torch.autocast("cuda")`` on a machine without CUDA needs a
patch: inside an emulated region, and while a backward pass recomputes one, it sets the flags of both
devices instead of warning that CUDA is missing.

When the last region has ended, kernels and patches are gone. They stay only for checkpointed blocks and
custom autograd functions that ran in a region, until their graph is freed: their backward passes may still
run under autocast.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import DefaultDeviceType, _CheckpointFrame

from halfguard.errors import UsageError
from halfguard.precision import autocast_kernels
from halfguard.precision.modes import autocast, autocast_dtype
from halfguard.precision.shared_changes import SharedChange, layered
from halfguard.precision_names import Precision

_DTYPES = (torch.float16, torch.bfloat16)


class _Emulation(threading.local):
    depth = 0  # nested emulate_autocast regions


_emulation = _Emulation()


@contextmanager
def emulate_autocast(
    device_type: str = "cuda", *, dtype: torch.dtype = torch.float16
) -> Iterator[None]:
    """Run a forward pass on a CPU in the dtypes that ``torch.autocast(device_type)`` would choose.

    For tensors on a GPU, the real rules apply. If the CPU has no 16-bit kernel for an operation that the GPU
    runs in 16-bit precision, torch raises an error, as it does without autocast.
    """
    if device_type != "cuda":
        raise UsageError(
            f"emulate_autocast({device_type!r}): only 'cuda' can be emulated.",
            cure="For the CPU's own rules, use torch.autocast('cpu').",
        )
    if dtype not in _DTYPES:
        raise UsageError(
            f"emulate_autocast(dtype={dtype}): the dtype must be a 16-bit dtype.",
            cure=f"Allowed: {', '.join(map(str, _DTYPES))}.",
        )
    with _installation.held():
        yield from _region(dtype)


def _region(dtype: torch.dtype) -> Iterator[None]:
    before = [(device, _flags(device)) for device in ("cuda", "cpu")]
    _emulation.depth += 1
    torch.autocast_increment_nesting()
    _clear_casts_at(nesting=1)
    try:
        for device, _ in before:
            _set_flags(device, (True, dtype))
        yield
    finally:
        for device, flags in before:
            _set_flags(device, flags)
        _emulation.depth -= 1
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        if _emulation.depth == 0:  # an outer autocast region ends unseen, once the patch is gone
            autocast_kernels.clear_cast_cache()


def autocast_like_cuda(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in ``precision``, with CUDA's rules also on a CPU."""
    dtype = autocast_dtype(precision)
    if dtype is not None and device.type == "cpu":
        return emulate_autocast("cuda", dtype=dtype)
    return autocast(precision, device.type)


class EmulationHold:
    """Keeps what emulated regions need in the process while this object lives.

    Registering 215 kernels takes about 3 ms, too long for every step of a run. The code outside of regions
    still computes the same.
    """

    def __init__(self) -> None:
        _installation.acquire()

    def __del__(self) -> None:
        _installation.release()

    def __reduce__(self) -> tuple[type[EmulationHold], tuple[()]]:
        return EmulationHold, ()  # a copy holds for itself


def hold_like_cuda(precision: Precision, device: torch.device) -> EmulationHold | None:
    """Return what a run keeps that enters ``autocast_like_cuda`` in every step."""
    emulated = autocast_dtype(precision) is not None and device.type == "cpu"
    return EmulationHold() if emulated else None


def _flags(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _set_flags(device: str, flags: tuple[bool, torch.dtype]) -> None:
    enabled, dtype = flags
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)


def _recomputing() -> bool:
    # In a backward pass, checkpointing and custom_bwd enter regions to restore the flags of the forward
    # pass. On a machine without CUDA, CUDA's flag can only have been set by an emulated region.
    return torch._C._current_graph_task_id() != -1 and not torch.cuda.is_available()


def _clear_casts_at(*, nesting: int) -> None:
    torch.autocast_increment_nesting()
    if torch.autocast_decrement_nesting() == nesting:
        autocast_kernels.clear_cast_cache()


def _init_emulated(init: Any) -> Any:
    def __init__(  # noqa: N807
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        emulated = device_type == "cuda" and (_emulation.depth > 0 or _recomputing())
        init(self, device_type, dtype, enabled and not emulated, cache_enabled)
        if emulated:
            self._enabled = enabled  # torch would disable it without a GPU

    return __init__


def _enter_emulated(enter: Any) -> Any:
    def __enter__(self: Any) -> Any:  # noqa: N807
        was_on = self.device == "cuda" and torch.is_autocast_enabled("cuda")
        mirrored = self.device == "cuda" and (
            _emulation.depth > 0 or (_recomputing() and (was_on or self._enabled))
        )
        self._halfguard_cpu = _flags("cpu") if mirrored else None
        enter(self)
        _clear_casts_at(nesting=1)
        if mirrored:  # by the flag, which without_autocast may have kept off
            _set_flags("cpu", (torch.is_autocast_enabled("cuda"), self.fast_dtype))
        return self

    return __enter__


def _exit_emulated(leave: Any) -> Any:
    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        result = leave(self, *error)
        if (before := getattr(self, "_halfguard_cpu", None)) is not None:
            _set_flags("cpu", before)
        _clear_casts_at(nesting=0)
        return result

    return __exit__


def _init_holding(init: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        if _emulation.depth > 0 or torch.is_autocast_enabled("cuda"):
            self._halfguard_hold = EmulationHold()

    return __init__


@contextmanager
def _installed() -> Iterator[None]:
    """Register the kernels and patch torch.autocast, which does nothing in threads that emulate nothing."""
    autocast = torch.amp.autocast_mode.autocast
    with ExitStack() as stack:
        stack.enter_context(autocast_kernels.registered())
        stack.enter_context(_checkpoints_as_on_cuda())
        stack.enter_context(layered(autocast, "__init__", _init_emulated))
        stack.enter_context(layered(autocast, "__enter__", _enter_emulated))
        stack.enter_context(layered(autocast, "__exit__", _exit_emulated))
        # What may run a part of the forward pass again in a backward pass, after the region has ended.
        for recomputing in (_CheckpointFrame, BackwardCFunction):
            stack.enter_context(layered(recomputing, "__init__", _init_holding))
        yield


@contextmanager
def _checkpoints_as_on_cuda() -> Iterator[None]:
    # Checkpointing restores the flags of the CPU and of one other device, which must be CUDA here. It looks
    # for an accelerator when it is first asked, so its own "not yet asked" is restored as well.
    before = DefaultDeviceType._default_device_type
    DefaultDeviceType.set_device_type("cuda")
    try:
        yield
    finally:
        DefaultDeviceType._default_device_type = before


_installation = SharedChange(_installed)
