"""The state of every random generator that a step may draw from, to repeat the step exactly."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def capture_random_state() -> dict[str, Any]:
    """Return the states of torch (host and every device), Python and, where it is in use, NumPy."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.accelerator.is_available():
        states["accelerator"] = _capture_devices()
    if "numpy" in sys.modules:
        states["numpy"] = _numpy_state.capture(sys.modules["numpy"].random)
    return states


class _NumpyState:
    """NumPy's global state, read anew only if it has changed: reading it takes longer than a small step."""

    def __init__(self) -> None:
        self._fingerprint: bytes | None = None
        self._state: Any = None

    def capture(self, numpy_random: Any) -> Any:
        generator = numpy_random.get_bit_generator()
        if type(generator).__name__ != "MT19937":
            return numpy_random.get_state()
        # 624 words and a position. A normal number kept for the next call lies elsewhere; it can only
        # appear together with a change of these, and is there if the state says so.
        fingerprint = ctypes.string_at(generator.ctypes.state_address, 4 * 625)
        if fingerprint != self._fingerprint or self._state[3]:
            self._fingerprint, self._state = fingerprint, numpy_random.get_state()
        return self._state


_numpy_state = _NumpyState()


def portable_random_state(states: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the states without NumPy's own types, for a file. This is too slow to do at every step."""
    if states is None or not isinstance(states.get("numpy"), tuple):
        return states
    name, keys, *rest = states["numpy"]
    return states | {"numpy": [name, list(map(int, keys)), *rest]}


def restore_random_state(states: dict[str, Any]) -> None:
    """Restore every generator to a captured state; states of another kind of accelerator do not fit."""
    torch.set_rng_state(states["torch"].cpu())  # a loader may have moved it
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    if "accelerator" in states and torch.accelerator.is_available():
        _restore_devices(states["accelerator"])
    if "numpy" in states:
        import numpy as np  # noqa: PLC0415

        state = states["numpy"]
        if not isinstance(state, dict):  # a dict is of a generator other than the default
            name, keys, *rest = state
            state = (name, np.array(keys, dtype=np.uint32), *rest)
        np.random.set_state(state)


def same_random_state(one: Any, other: Any) -> bool:
    """Return whether two captured states are equal, alone or in containers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same_random_state(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_random_state, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore all generators, on every device, after the block."""
    states = capture_random_state()
    try:
        yield
    finally:
        restore_random_state(states)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, NumPy (if it is in use) and torch on every device for the block."""
    with preserved_random_state():
        random.seed(seed)
        torch.manual_seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        yield


Generator = Any  # torch.Generator, random.Random, numpy.random.Generator or RandomState


def generator_state(generator: Generator) -> Any:
    """Return a copy of a generator's state."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_generator_state(generator: Generator, state: Any) -> None:
    """Set a generator to a state that ``generator_state`` returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


@contextmanager
def preserved_generators(generators: Iterable[Generator]) -> Iterator[None]:
    """Restore the generators' states after the block."""
    states = [(generator, generator_state(generator)) for generator in generators]
    try:
        yield
    finally:
        for generator, state in states:
            set_generator_state(generator, state)


def _capture_devices() -> dict[str, Any]:
    kind, module = _accelerator()
    return {
        "type": kind,
        "current": torch.accelerator.current_device_index(),
        "states": [module.get_rng_state(*which) for which in _devices()],
    }


def _restore_devices(captured: Any) -> None:
    kind, module = _accelerator()
    if captured["type"] != kind:
        return
    devices, states = _devices(), captured["states"]
    if len(devices) < len(states):  # a smaller machine: its devices stand for the one in use
        states = [states[captured["current"]]] * len(devices)
    for which, state in zip(devices, states, strict=False):
        module.set_rng_state(state.cpu(), *which)


def _devices() -> list[tuple[int, ...]]:
    """Return the argument that names each device; some modules (torch.mps) have one device and none."""
    count = torch.accelerator.device_count()
    return [()] if count == 1 else [(index,) for index in range(count)]


def _accelerator() -> tuple[str, Any]:
    device = torch.accelerator.current_accelerator()
    assert device is not None  # noqa: S101 - callers check is_available first
    return device.type, torch.get_device_module(device)
