"""Ratios from interleaved runs: A B C A B C ..., so that a noisy machine is noisy for all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        low, median, high = statistics.quantiles(values, n=4)
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every round for every contestant; one call each, in turn.

    ``clock=time.process_time`` counts the seconds of the processor: with one thread it is the measure
    that other people's work on the machine disturbs least.
    """
    for run in list(contestants.values()) * warm_up:
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def ratios(seconds: Mapping[str, list[float]], *, against: str) -> dict[str, Spread]:
    """Each contestant's time over that of ``against`` in the same round."""
    base = seconds[against]
    return {
        name: Spread.of([mine / theirs for mine, theirs in zip(values, base, strict=True)])
        for name, values in seconds.items()
    }


def print_table(title: str, seconds: Mapping[str, list[float]], *, against: str) -> None:
    """A row a contestant: median milliseconds, and the ratio with its quartiles."""
    print(f"\n{title} (median of {len(seconds[against])} interleaved rounds)")
    print(f"{'':<34}{'ms':>10}   ratio [quartiles]")
    for name, ratio in ratios(seconds, against=against).items():
        print(f"{name:<34}{statistics.median(seconds[name]) * 1e3:>10.2f}   {ratio}")
