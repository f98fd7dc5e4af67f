"""The precisions as torch runs them: weight dtype, autocast dtype, and the contexts of a forward pass.

FP16 weights keep autocast on. A half model without autocast computes its loss and its softmax in half, and
raises for FP32 inputs. With it, matrix products cost the same (there is nothing left to cast), and the
operations that need FP32 get it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from typing import Any

import torch

from halfguard.precision.shared_changes import SharedChange, layered
from halfguard.precision_names import Precision

HALF_DTYPES = (torch.float16, torch.bfloat16)

_AUTOCAST_DTYPES: dict[Precision, torch.dtype | None] = {
    Precision.FP32: None,
    Precision.FP16_MIXED: torch.float16,
    Precision.BF16_MIXED: torch.bfloat16,
    Precision.FP16_WEIGHTS: torch.float16,
}


def autocast_dtype(precision: Precision | str) -> torch.dtype | None:
    """Return the dtype to which autocast lowers matrix products, or None if autocast is off."""
    return _AUTOCAST_DTYPES[Precision(precision)]


def autocast(precision: Precision | str, device_type: str) -> torch.autocast:
    """Return the context for a forward pass; ``fp32`` switches an outer autocast off."""
    dtype = autocast_dtype(precision)
    if dtype is None:
        return full_precision(device_type)
    return torch.autocast(device_type, dtype=dtype)


def full_precision(device_type: str) -> torch.autocast:
    """Return the context for a region that must not be lowered: an FP32 island, a retried step.

    It switches autocast off and casts nothing. A tensor that an outer autocast has already made half
    stays half until it is cast: ``module(x.float())``.
    """
    return torch.autocast(device_type, enabled=False)


@contextmanager
def without_autocast(*device_types: str) -> Iterator[None]:
    """Run the block with autocast off on these devices, and with every ``torch.autocast`` inside off as well.

    A loss function may enter an autocast of its own; a step that is repeated in FP32 must not follow it. The
    block reaches its own thread and the backward passes that it starts, as autocast itself does. Code that
    torch.compile has already compiled with its own autocast is not reached.
    """
    with ExitStack() as stack:
        for device_type in device_types:
            stack.enter_context(full_precision(device_type))
        stack.enter_context(_switchable.held())
        before = _switched_off.get()
        _switched_off.set(True)
        try:
            yield
        finally:
            _switched_off.set(before)


_switched_off: ContextVar[bool] = ContextVar("halfguard_autocast_switched_off", default=False)


def _is_switched_off() -> bool:
    if _switched_off.get() or torch._C._current_graph_task_id() == -1:
        return _switched_off.get()
    # A backward pass on an accelerator runs in a thread of torch, which gets the caller's context since 2.12.
    if torch._C._is_key_in_tls("context"):
        context: Context = torch._C._get_obj_in_tls("context")
        return context.get(_switched_off, False)
    # Before that, every thread that Python did not start belongs to such a pass: the patch is there for one.
    return threading.current_thread().name.startswith("Dummy-")


def _enter_unless_switched_off(enter: Any) -> Any:
    def __enter__(self: torch.autocast) -> Any:  # noqa: N807
        if not _is_switched_off():
            return enter(self)
        enabled, self._enabled = self._enabled, False
        try:
            return enter(self)
        finally:
            self._enabled = enabled

    return __enter__


_switchable = SharedChange(lambda: layered(torch.autocast, "__enter__", _enter_unless_switched_off))


@contextmanager
def eagerly() -> Iterator[None]:
    """Run the block without compiled code, so that modes see its operations."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def has_compiled() -> bool:
    """Return whether ``torch.compile`` has compiled something in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])
