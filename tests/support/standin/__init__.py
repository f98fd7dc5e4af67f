"""A stand-in accelerator: the torch device "standin", for tests of what only an accelerator does.

Two devices with memory of their own, on which CPU kernels compute. ``prepare()`` compiles it, ``load()``
registers it with torch, both once per process. ``torch.standin`` then has the functions of ``torch.cuda``,
and controls for tests: waits of the host are counted or raise, and asynchronous copies arrive late.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from tests.support.standin.build import BuildError

__all__ = ["NAME", "load", "prepare"]

NAME = "standin"


@functools.cache
def prepare() -> str | None:
    """Compile and import the device; return the reason if this machine cannot.

    Call it before the first backward pass of the process: that is when torch starts a thread for each device.
    Until ``load()`` registers the device, torch still says that there is no accelerator.
    """
    try:
        from tests.support.standin import torch_standin  # noqa: F401
    except BuildError as error:
        return str(error)
    return None


@functools.cache
def load() -> ModuleType:
    """Register the device, and return ``torch.standin``; raise if this machine cannot compile it."""
    from tests.support.standin import torch_standin

    rename_privateuse1_backend(NAME)
    torch_standin._C.register_device()
    torch._register_device_module(NAME, torch_standin)
    generate_methods_for_privateuse1_backend()
    return torch_standin
