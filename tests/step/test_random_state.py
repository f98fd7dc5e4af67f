"""Random states of several devices, which a machine without them only pretends to have, and of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfguard.step.random_state import (
    capture_random_state,
    portable_random_state,
    preserved_random_state,
    restore_random_state,
)


class Devices:
    """Two GPUs: the state of each generator, and which device is the current one."""

    def __init__(self) -> None:
        self.states = {0: torch.tensor([10]), 1: torch.tensor([11])}
        self.current = 0

    def get(self, device: int | None = None) -> torch.Tensor:
        return self.states[self.current if device is None else device]

    def set(self, state: torch.Tensor, device: int | None = None) -> None:
        self.states[self.current if device is None else device] = state


def test_every_device_gets_its_own_state_back(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", devices.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", devices.set)
    with preserved_random_state():
        devices.set(torch.tensor([20]), 0)
        devices.set(torch.tensor([21]), 1)
        devices.current = 1  # as torch.cuda.set_device(local_rank) in a job's function
    assert {index: int(state) for index, state in devices.states.items()} == {0: 10, 1: 11}


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_another_generator_of_numpy_is_restored() -> None:
    legacy: Any = np.random  # its stubs leave these two functions out
    before = legacy.get_bit_generator()
    legacy.set_bit_generator(np.random.PCG64(1))
    try:
        states = portable_random_state(capture_random_state())
        assert states is not None
        with preserved_random_state():
            first = np.random.random()
        assert np.random.random() == first
        restore_random_state(states)
        assert np.random.random() == first
    finally:
        legacy.set_bit_generator(before)


DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "uniform": np.random.random,
    "normal": np.random.randn,  # keeps a second number for the next call
    "array": lambda: np.random.rand(700),
    "seed": lambda: np.random.seed(5),
}


@settings(max_examples=100)
@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=12))
def test_numpys_state_is_read_anew_whenever_it_has_changed(draws: list[str]) -> None:
    with preserved_random_state():
        for draw in draws:
            DRAWS[draw]()
            name, keys, *rest = capture_random_state()["numpy"]
            expected_name, expected_keys, *expected_rest = np.random.get_state()
            assert (name, rest) == (expected_name, expected_rest)
            assert (keys == expected_keys).all()
