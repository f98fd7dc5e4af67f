"""The metrics of a run, written by a script or returned by a function.

A bad number is a result, not an error: a script whose training diverged writes NaN, null or a number outside
the range of floats, and all of these are read as non-finite numbers. A missing metric may be a result or an
error. One run cannot tell, so ``NoMetricError`` carries the run's result, and the study, which sees all runs,
decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from halfguard.errors import UsageError
from halfguard.records.study import RunResult

CURE = (
    'Let the script write one JSON object to {out}, for example {"accuracy": 0.93}, or let evaluate(model) '
    "return the metric. metric.name must be one of the names."
)


class NoMetricError(UsageError):
    """A run ended without the metric that is compared."""

    def __init__(self, message: str, run: RunResult) -> None:
        super().__init__(message, cure=CURE)
        self.run = run.model_copy(update={"failure": message, "cause": "metric"})


def numeric_values(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return the entries of ``values`` that are numbers; text, lists and booleans are left out."""
    found = ((str(name), _number(value)) for name, value in values.items())
    return {name: value for name, value in found if value is not None}


def require_metric(run: RunResult, metric: str, problem: str = "") -> RunResult:
    """Return the run, or raise if it succeeded without ``metric``; ``problem`` is the known reason."""
    if run.failure is None and metric not in run.metrics:
        names = ", ".join(map(repr, run.metrics)) or "none"
        missing = problem or f"metric.name: the run has no metric {metric!r}; it has {names}"
        raise NoMetricError(f"{missing}.", run)
    return run


def _number(value: object) -> float | None:
    if value is None:
        return math.nan  # null is how JSON writes NaN
    if isinstance(value, bool) or not isinstance(value, Real | str):
        return None
    try:
        number = float(value)
    except ValueError:  # text
        return None
    except OverflowError:  # an integer outside the range of floats
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    # Some JSON writers put NaN and infinity in quotes; other text is not a number.
    return None if isinstance(value, str) and math.isfinite(number) else number
