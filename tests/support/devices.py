"""The device of the running test: "cpu", or "standin" in the second run of a test that asks for ``device``.

Tests build models and batches in many helpers, so these ask here instead of passing the device around.
Nothing is made the default device: code under test must place its own tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tests.support import standin

T = TypeVar("T")

_chosen = torch.device("cpu")


def chosen_device() -> torch.device:
    """Return the device of the running test."""
    return _chosen


def place(value: T) -> T:
    """Return a module, a tensor, or a nested batch on the device of the running test."""
    found: Any = value
    if isinstance(found, Tensor | nn.Module):
        return found.to(_chosen)  # type: ignore[return-value]
    if isinstance(found, dict):
        return type(found)((key, place(item)) for key, item in found.items())  # type: ignore[return-value]
    if isinstance(found, list | tuple):
        return type(found)(map(place, found))  # type: ignore[return-value]
    return value


@contextmanager
def choosing(name: str) -> Iterator[torch.device]:
    """Let tests run on this device for the block; the stand-in's asynchronous copies arrive late."""
    global _chosen  # noqa: PLW0603
    if name == "cpu":
        yield _chosen
        return
    module = standin.load()
    module.set_available(True)
    module.set_device(0)
    module.manual_seed_all(0)
    module.set_late_copies(True)
    module.reset_counts()
    _chosen = torch.device(name, 0)
    try:
        yield _chosen
    finally:
        _chosen = torch.device("cpu")
        module.set_sync_debug_mode("default")
        module.set_late_copies(False)
        module.set_device(0)
        module.set_available(False)


def host_waits(run: Callable[[], object]) -> dict[str, int]:
    """Return how often the host waited for the stand-in while ``run`` ran, by reason."""
    module = standin.load()
    module.reset_counts()
    run()
    return {kind: count for kind, count in module.waits().items() if count}
