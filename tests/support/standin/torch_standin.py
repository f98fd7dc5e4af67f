"""The module ``torch.standin``: what ``torch.cuda`` gives to torch and to users, then the controls of tests.

Import it through ``tests.support.standin.load``, which registers it with torch.

The device can be made unavailable, so that later tests of the same process see a machine without an
accelerator. What stays behind is what a CUDA build of torch has on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from tests.support.standin.build import build, import_extension

Device = torch.device | str | int | None

_C = import_extension(build())
_state: dict[str, Any] = {"available": True, "sync_debug_mode": "default"}

default_generators: tuple[torch.Generator, ...] = tuple(
    _C.default_generator(index) for index in range(_C.device_count())
)


# -- devices


def is_available() -> bool:
    """Return whether tests have not made the device unavailable."""
    return bool(_state["available"])


def is_initialized() -> bool:
    """Return True: there is no driver to start."""
    return True


def init() -> None:
    """Do nothing: there is no driver to start."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Return the number of devices: two, or none while unavailable."""
    return int(_C.device_count()) if is_available() else 0


def current_device() -> int:
    """Return the index of the current device."""
    return int(_C.current_device())


def set_device(device: Device) -> None:
    """Make a device the current one."""
    _C.set_device(_index(device))


class device:  # noqa: N801 - the name that torch asks for
    """Make a device the current one for a block."""

    def __init__(self, device: Device) -> None:
        self.index = _index(device)
        self.before = 0

    def __enter__(self) -> None:
        self.before = current_device()
        _C.set_device(self.index)

    def __exit__(self, *_: object) -> None:
        _C.set_device(self.before)


def synchronize(device: Device = None) -> None:
    """Wait for everything that was submitted to a device."""
    torch.accelerator.synchronize(_index(device))


def _index(device: Device) -> int:
    index = device if isinstance(device, int) or device is None else torch.device(device).index
    return current_device() if index is None else index


# -- memory


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return the statistics of the allocator, under the names of ``torch.cuda.memory_stats``."""
    return dict(torch.accelerator.memory_stats(_index(device)))


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors of a device occupy."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """Return the largest number of bytes since the last reset."""
    return torch.accelerator.max_memory_allocated(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Set the largest number of bytes to the present one."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def empty_cache() -> None:
    """Do nothing: freed memory is not kept."""


# -- random generators


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def get_rng_state(device: Device = None) -> Tensor:
    """Return the state of a device's generator."""
    return default_generators[_index(device)].get_state()


def set_rng_state(new_state: Tensor, device: Device = None) -> None:
    """Set the state of a device's generator."""
    default_generators[_index(device)].set_state(new_state)


# -- precision


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: CPU kernels compute in BF16."""
    return True


# -- for tests


def set_available(available: bool) -> None:
    """Let torch say that there is a device, or that there is none."""
    _state["available"] = available


def waits() -> dict[str, int]:
    """Return how often the host waited for the device, by reason, since ``reset_counts``.

    Reads of a number ("item"), copies that block ("copy to host", "copy to device"), operations whose result
    has a size that the device decides ("nonzero"), and waits for what had not finished yet ("event",
    "stream", "device").
    """
    return dict(_C.waits())


def operations() -> dict[str, int]:
    """Return how often each operation ran on the device since ``reset_counts``."""
    return dict(_C.operations())


def reset_counts() -> None:
    """Forget all waits and operations so far."""
    _C.reset_counts()


def set_sync_debug_mode(debug_mode: Literal["default", "error"]) -> None:
    """Count the reads and blocking copies of the host ("default"), or let them raise ("error")."""
    _state["sync_debug_mode"] = debug_mode
    _C.raise_on_wait(debug_mode == "error")


def get_sync_debug_mode() -> str:
    """Return what ``set_sync_debug_mode`` set."""
    return str(_state["sync_debug_mode"])


def set_late_copies(late: bool, *, lag: int = 0) -> None:
    """Let asynchronous copies and events finish late: when the host waits, or ``lag`` operations later.

    With a lag of 0 they never finish by themselves, so that code which forgets to wait always reads NaN.
    """
    _C.set_late(late, lag)


def pending_copies(device: Device = None) -> int:
    """Return the number of asynchronous copies to the host that have not arrived."""
    return int(_C.pending_copies(_index(device)))


@contextmanager
def no_waits() -> Iterator[None]:
    """Let reads and blocking copies raise in the block."""
    before = get_sync_debug_mode()
    set_sync_debug_mode("error")
    try:
        yield
    finally:
        set_sync_debug_mode("error" if before == "error" else "default")
