"""A run as a tracker logged it: its metrics over steps, its settings, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Series:
    """The values of one metric, in the order in which they were logged."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def sorted_by_step(self) -> Series:
        """Return the values by ascending step; values of one step stay in their order."""
        order = sorted(range(len(self.steps)), key=self.steps.__getitem__)
        return Series([self.steps[i] for i in order], [self.values[i] for i in order])

    @property
    def nonfinite(self) -> int:
        """The number of values that are NaN or infinite."""
        return sum(not math.isfinite(value) for value in self.values)


@dataclass(frozen=True)
class LoggedRun:
    """One run, read from the files of a tracker.

    ``failure`` says why training failed. ``unfinished`` says why its end is unknown: it may still be running,
    or was killed, or the rest of its file is damaged.
    """

    place: str
    name: str = ""
    metrics: Mapping[str, Series] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)  # group, experiment, tags and the like
    failure: str | None = None
    unfinished: str | None = None
    seconds: float = math.nan

    @property
    def settings(self) -> dict[str, str]:
        """Labels and configuration as text, nested names joined by dots."""
        flat = dict(flatten(self.config))
        return {name: str(value) for name, value in flat.items()} | dict(self.labels)


class MetricLog(dict[str, Series]):
    """Metrics that grow while a file is read."""

    def add(self, name: str, step: int, value: float) -> None:
        self.setdefault(name, Series()).add(step, value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested mapping with their dotted names."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        else:
            yield name, value
