"""Interleaved rounds tell a ratio truly, also on a machine whose speed changes under them."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfguard.records.cost import Spread
from halfguard.workload.timing import medians, ratios, time_interleaved


class Machine:
    """A clock and work on it: ``slowness(now)`` stretches every second of work."""

    def __init__(self, slowness: Callable[[float], float]) -> None:
        self.now, self.slowness, self.calls = 0.0, slowness, list[str]()

    def clock(self) -> float:
        return self.now

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(name)
            self.now += seconds * self.slowness(self.now)

        return run


def test_runs_take_turns_and_warm_up_is_not_counted() -> None:
    machine = Machine(lambda _: 1.0)
    runs = {"a": machine.work("a", 1.0), "b": machine.work("b", 2.0)}
    seconds = time_interleaved(runs, rounds=3, warmup=2, clock=machine.clock)
    assert "".join(machine.calls) == "ab" * 5
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert medians(seconds) == {"a": 1.0, "b": 2.0}


def test_a_machine_that_gets_three_times_slower_halfway_does_not_move_the_ratio() -> None:
    drift = Machine(lambda now: 1.0 if now < 100 else 3.0)
    runs = {"base": drift.work("base", 1.0), "half": drift.work("half", 0.8)}
    seconds = time_interleaved(runs, rounds=101, warmup=0, clock=drift.clock)
    assert max(seconds["base"]) == pytest.approx(3 * min(seconds["base"]))
    ratio = ratios(seconds, against="base")["half"]
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((0.8, 0.8, 0.8))


def test_hiccups_in_a_fifth_of_the_rounds_do_not_move_the_ratio() -> None:
    count = itertools.count()
    noisy = Machine(lambda _: 50.0 if next(count) % 10 == 3 else 1.0)
    runs = {"base": noisy.work("base", 1.0), "half": noisy.work("half", 0.8)}
    seconds = time_interleaved(runs, rounds=40, warmup=0, clock=noisy.clock)
    ratio = ratios(seconds, against="base")["half"]
    assert ratio.median == pytest.approx(0.8)
    mean = statistics.mean(seconds["half"]) / statistics.mean(seconds["base"])
    assert mean > 5, "the mean would have been fooled"


def test_an_accelerator_is_waited_for_before_either_reading_of_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    def clock() -> float:
        happened.append("clock")
        return float(len(happened))

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: happened.append("wait"))
    time_interleaved({"a": lambda: happened.append("run")}, rounds=2, warmup=0, clock=clock)
    assert happened == ["wait", "clock", "run", "wait", "clock"] * 2


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50))
def test_a_spread_lies_within_its_values_and_in_order(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.median == pytest.approx(statistics.median(values))


def test_real_work_that_is_four_times_as_long_is_told_apart() -> None:
    def work(times: int) -> Callable[[], object]:
        return lambda: sum(i * i for i in range(20_000 * times))

    runs = {"one": work(1), "four": work(4)}
    seconds = time_interleaved(runs, rounds=9, warmup=1, clock=time.process_time)
    assert 2.5 < ratios(seconds, against="one")["four"].median < 6.5
