"""Ratios from interleaved runs: A B C A B C ..., so that a noisy machine is noisy for all alike.

A ratio is taken within a round and never between the averages of two series: a machine that gets slower
for a minute slows both runs of those rounds, and their ratios stay what they were.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from halfguard.errors import UsageError


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; a single one has no spread."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every round for every run; one call each, in turn, after ``warmup`` rounds unmeasured.

    An accelerator is waited for before each reading of the clock, so that a run is charged for all of its
    work and for nobody else's. ``clock=time.process_time`` counts the seconds of the processor: with one
    thread it is the measure that other people's work on the machine disturbs least.
    """
    if rounds < 1 or warmup < 0:
        raise UsageError(
            f"rounds={rounds}, warmup={warmup} measures nothing.",
            cure="Pass rounds >= 1, warmup >= 0.",
        )
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else _nothing
    for run in list(runs.values()) * warmup:
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            wait()
            start = clock()
            run()
            wait()
            seconds[name].append(clock() - start)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each run's median seconds."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratios(seconds: Mapping[str, Sequence[float]], *, against: str) -> dict[str, Spread]:
    """Each run's time over that of ``against`` in the same round."""
    if against not in seconds:
        raise UsageError(
            f"There is no run named {against!r} to compare with.",
            cure=f"Runs: {', '.join(seconds)}.",
        )
    base = seconds[against]
    return {
        name: Spread.of([mine / theirs for mine, theirs in zip(values, base, strict=True)])
        for name, values in seconds.items()
    }


def _nothing() -> None:
    pass
