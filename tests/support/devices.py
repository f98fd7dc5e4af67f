"""The device of the running test: "cpu", or "standin" in the second run of a test that asks for ``device``.

``tests/device`` runs on any device. The tensors and modules that tests build lie on the device of the test.
Code under test must place its own: a default device would hide that it forgot to.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import halfguard
from tests.support import standin

T = TypeVar("T")

_PACKAGE = str(Path(halfguard.__file__).parent)
_TESTS = str(Path(__file__).parents[1])
_chosen = torch.device("cpu")


def chosen_device() -> torch.device:
    """Return the device of the running test."""
    return _chosen


def device_type() -> str:
    """Return the type of that device, for autocast and scalers."""
    return _chosen.type


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


def generator_state() -> Tensor:
    """Return the state of the chosen device's random generator."""
    return _generators().get_rng_state()


def set_generator_state(state: Tensor) -> None:
    """Set the state of the chosen device's random generator."""
    _generators().set_rng_state(state)


def _generators() -> Any:
    return torch if _chosen.type == "cpu" else torch.get_device_module(_chosen)


@contextmanager
def choosing(name: str) -> Iterator[torch.device]:
    """Let tests run on this device for the block; the stand-in's asynchronous copies arrive late."""
    global _chosen  # noqa: PLW0603
    before = _chosen
    if name != standin.NAME:
        _chosen = torch.device(name)
        try:
            yield _chosen
        finally:
            _chosen = before
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
        _chosen = before
        module.set_sync_debug_mode("default")
        module.set_late_copies(False)
        module.set_device(0)
        module.set_available(False)


@contextmanager
def running_on(name: str, test: pytest.Item) -> Iterator[torch.device]:
    """Run a test on this device, with the tensors that it makes; skip it if there is no such device."""
    require(name)
    if name == "cpu":
        yield torch.device(name)
        return
    with choosing(name) as chosen:
        by_hand = test.get_closest_marker("placed_by_hand")
        with nullcontext() if by_hand else PlacingTests():
            yield chosen


def require(name: str) -> None:
    """Skip the running test if this machine cannot compile the stand-in; in CI, it fails."""
    missing = standin.prepare() if name == standin.NAME else None
    if missing is not None:
        if os.environ.get("HALFGUARD_STANDIN") == "required":
            pytest.fail(missing)
        pytest.skip(missing)


class PlacingTests(TorchFunctionMode):
    """Puts new tensors on the chosen device if a test makes them, itself or through a module of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _device_constructors() or kwargs.get("device") is not None:
            return func(*args, **kwargs)
        if _caller() != "tests" or kwargs.get("pin_memory"):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:  # the same numbers as on the CPU
            return func(*args, **kwargs).to(_chosen)
        return func(*args, **(kwargs | {"device": _chosen}))


def _caller() -> str:
    """Return whose code makes a tensor: that of the tests, or that of the package."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        code, frame = frame.f_code, frame.f_back
        if code.co_name == "__torch_function__":  # a mode, which passes on what others call
            continue
        if code.co_filename.startswith(_PACKAGE):
            return "halfguard"
        if code.co_filename.startswith(_TESTS) and code.co_filename != __file__:
            return "tests"
    return "another"


def host_waits(run: Callable[[], object]) -> dict[str, int]:
    """Return how often the host waited for the device while ``run`` ran, by reason.

    CUDA gives no reason. A CPU is never waited for.
    """
    if _chosen.type == "cuda":
        return _cuda_waits(run)
    module = standin.load()
    module.reset_counts()
    run()
    return {kind: count for kind, count in module.waits().items() if count}


def _cuda_waits(run: Callable[[], object]) -> dict[str, int]:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    count = sum("synchronizing CUDA operation" in str(found.message) for found in warned)
    return {"sync": count} if count else {}
