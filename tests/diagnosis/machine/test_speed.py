"""The speed of matrix products: measured relative to FP32, and without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from halfguard.diagnosis.machine import speed
from halfguard.diagnosis.machine.speed import measure_rate, measure_speeds

CPU = torch.device("cpu")

pytestmark = pytest.mark.slow  # it measures times


def test_speeds_are_relative_to_fp32_and_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    found = measure_speeds(CPU)
    assert torch.get_num_threads() == before
    assert found is not None
    assert found.keys() == {"fp32", "fp16-mixed", "bf16-mixed"}
    assert found["fp32"] == 1
    assert min(found.values()) > 0


def test_a_slow_format_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.mm

    def slow_in_half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(16 * (a.dtype == torch.float16)):
            real(a.float(), b.float())
        return real(a, b)

    monkeypatch.setattr(torch, "mm", slow_in_half)
    found = measure_speeds(CPU)
    assert found is not None
    assert found["fp16-mixed"] < 0.4


def test_the_rate_counts_the_operations_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_a_second(runs: dict[str, Callable[[], Tensor]], **_: object) -> dict[str, list[float]]:
        return {name: [0.25, 0.5, 9.0] for name, run in runs.items() if run().shape == (512, 512)}

    monkeypatch.setattr(speed, "time_interleaved", half_a_second)
    assert measure_rate(CPU) == 2 * 512**3 / 0.5


def test_a_device_without_kernels_has_no_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(speed, "time_interleaved", missing)
    assert measure_speeds(CPU) is None
    assert measure_rate(CPU) is None
    assert torch.get_num_threads() >= 1


@pytest.mark.parametrize(("seconds", "side"), [(1e-3, 1024), (1.0, 512), (1e-9, 4096)])
def test_products_on_an_accelerator_are_as_large_as_its_speed_needs(
    monkeypatch: pytest.MonkeyPatch, seconds: float, side: int
) -> None:
    """``seconds`` is the time of the smallest product; with the largest, a slow device needs minutes."""

    def cubic(runs: dict[str, Callable[[], Tensor]], **_: object) -> dict[str, list[float]]:
        return {name: [seconds * (len(run()) / 512) ** 3] for name, run in runs.items()}

    monkeypatch.setattr(speed, "time_interleaved", cubic)
    rate = measure_rate(torch.device("meta"))
    assert rate == pytest.approx(2 * 512**3 / seconds)
    largest = speed._choose_side(torch.device("meta"))
    assert largest == side


@pytest.mark.parametrize(("seconds", "rounds"), [(1e-4, [1, 9]), (0.1, [1, 3]), (1.0, [1])])
def test_products_that_take_long_are_run_less_often(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounds: list[int]
) -> None:
    asked = []

    def timed(runs: dict[str, Callable[[], Tensor]], **how: Any) -> dict[str, list[float]]:
        asked.append(how["rounds"])
        return {name: [seconds] * how["rounds"] for name in runs}

    monkeypatch.setattr(speed, "time_interleaved", timed)
    assert measure_speeds(CPU) == pytest.approx(dict.fromkeys(speed.DTYPES, 1.0))
    assert asked == rounds
