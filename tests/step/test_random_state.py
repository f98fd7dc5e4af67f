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
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: devices.current)
    monkeypatch.setattr(torch.cuda, "get_rng_state", devices.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", devices.set)
    with preserved_random_state():
        devices.set(torch.tensor([20]), 0)
        devices.set(torch.tensor([21]), 1)
        devices.current = 1  # as torch.cuda.set_device(local_rank) in a job's function
    assert {index: int(state) for index, state in devices.states.items()} == {0: 10, 1: 11}


@pytest.mark.usefixtures("seed")
def test_every_generator_is_restored(accelerator: Any) -> None:
    def draw() -> list[float]:
        return [float(torch.rand((), device=where)) for where in ("cpu", "standin:0", "standin:1")]

    torch.rand(3, device="standin:1")
    states = portable_random_state(capture_random_state())
    assert states is not None
    with preserved_random_state():
        first = draw()
    assert draw() == first
    accelerator.set_device(1)
    restore_random_state(states)
    assert draw() == first


def test_a_smaller_machine_gives_its_devices_the_state_of_the_one_in_use(
    accelerator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator.manual_seed_all(7)
    accelerator.set_device(1)
    torch.rand(3, device="standin:1")
    states = capture_random_state()
    second = torch.rand(3, device="standin:1")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    accelerator.set_device(0)
    restore_random_state(states)
    assert torch.equal(torch.rand(3, device="standin:0"), second.to("standin:0"))


def test_states_of_another_kind_of_accelerator_are_left_alone(accelerator: Any) -> None:
    states = capture_random_state()
    here = accelerator.get_rng_state()
    states["accelerator"] = {"type": "cuda", "current": 0, "states": [torch.zeros(16)]}
    restore_random_state(states)
    assert torch.equal(accelerator.get_rng_state(), here)


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
