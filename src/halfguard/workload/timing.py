"""Time ratios of interleaved runs: A B C A B C ..., so that noise of the machine affects all runs alike.

A ratio is taken within a round, never between the averages of two series: a machine that is slower for a
minute slows all runs of those rounds, and their ratios stay the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from halfguard.records.cost import Spread


def time_interleaved(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of every run in every round; ``warmup`` rounds come first and are not measured.

    Every device is synchronized before each reading of the clock, so that a run's time includes all of its
    own work and nothing else. ``clock=time.process_time`` counts processor seconds: with one thread, other
    processes on the machine disturb it least.
    """
    devices = range(torch.accelerator.device_count() if torch.accelerator.is_available() else 0)

    def wait() -> None:
        for device in devices:  # a run may use another than the current one
            torch.accelerator.synchronize(device)

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
    """Return each run's median seconds."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratios(seconds: Mapping[str, Sequence[float]], *, against: str) -> dict[str, Spread]:
    """Return each run's time divided by that of ``against`` in the same round."""
    base = seconds[against]
    return {
        name: Spread.of([mine / theirs for mine, theirs in zip(values, base, strict=True)])
        for name, values in seconds.items()
    }
