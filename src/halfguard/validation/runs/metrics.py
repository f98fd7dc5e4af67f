"""The numbers that a run tells about itself, whether a script wrote them or a function returned them.

One bad number is a result and no mistake: what has diverged is written as NaN, as null or as a number that
no float holds, and all of these are numbers that are not finite. A metric that is missing altogether may be
either. The run cannot know which, so ``NoMetricError`` carries the run as it would be kept, and the study,
which knows what the others told, decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from halfguard.errors import UsageError
from halfguard.records.study import RunResult

CURE = (
    'Let the script write one object at {out}, as {"accuracy": 0.93}; or let evaluate(model) return the '
    "metric. metric.name must be one of its names."
)


class NoMetricError(UsageError):
    """A run came to its end without the metric that decides."""

    def __init__(self, message: str, run: RunResult) -> None:
        super().__init__(message, cure=CURE)
        self.run = run.model_copy(update={"failure": message, "cause": "metric"})


def numbers_in(values: Mapping[Any, Any]) -> dict[str, float]:
    """What is a number in ``values``, by its name; text, lists and truth values are left out."""
    found = ((str(name), _number(value)) for name, value in values.items())
    return {name: value for name, value in found if value is not None}


def required(run: RunResult, metric: str, told: str = "") -> RunResult:
    """The run itself; raises if it ended well without ``metric``, as ``told`` says if it says anything."""
    if run.failure is None and metric not in run.metrics:
        names = ", ".join(map(repr, run.metrics)) or "none at all"
        missing = told or f"metric.name: the run tells no number {metric!r}; it has {names}"
        raise NoMetricError(f"{missing}.", run)
    return run


def _number(value: object) -> float | None:
    if value is None:
        return math.nan  # how JSON says NaN
    if isinstance(value, str):
        return _not_finite(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def _not_finite(text: str) -> float | None:
    """NaN and infinity in any spelling, as JSON writers that cannot say them put them into quotes."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isfinite(value) else value
