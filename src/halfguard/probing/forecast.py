"""When will a layer overflow? A trend in log2 of its largest magnitude, announced on strong evidence only.

Activations that run away do so by a factor per step: a straight line in log2. The slope is the median of
the slopes between all pairs of points (Theil and Sen), which spikes do not move. Three things look like a
trend and are none, and each has its test:

* noise that remembers itself. Neighbouring steps resemble each other, so that n steps say less than n
  independent ones would; the interval is widened by the residuals' autocorrelation, and by the roughness
  of a random walk with the same steps, which drifts without a direction;
* the start of training, steep and then flat: the latter half must rise by itself, and not much slower;
* a slope that leads far beyond what was seen: an overflow further ahead than the steps seen is not announced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import NormalDist, fmean, median

LIMIT = math.log2(65504.0)
POINTS = 64  # more are gathered into this many medians: the cost is their square
FEWEST = 12
CONFIDENCE = 0.999
REACH = 1.0  # times the steps seen: further ahead a straight line is a guess


@dataclass(frozen=True)
class Trend:
    """A slope per step with its interval, and the level at the last point."""

    slope: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Announcement:
    """Steps from the last one seen until the limit is passed, with an interval."""

    steps: float
    low: float
    high: float
    doubling: float


def forecast(absmax: Sequence[float], *, limit: float = LIMIT) -> Announcement | None:
    """Announce an overflow from the largest magnitudes of consecutive steps, or None.

    A value that is not finite has overflowed already, and is no business of a forecast.
    """
    if not all(math.isfinite(value) and value > 0 for value in absmax):
        return None
    points = _thinned([math.log2(value) for value in absmax])
    if len(points) < FEWEST:
        return None
    whole, latter = trend(points), trend(points[len(points) // 2 :])
    # The latter half alone has too few points for a strict interval of its own: it must rise, at no less
    # than half the pace, and the whole must rise beyond doubt.
    certain = (
        whole.slope > 0 and whole.low >= whole.slope / 4
    )  # else the interval has no useful end
    if not certain or latter.slope < whole.slope / 2 or latter.low_at(0.9) <= 0:
        return None
    pace = latter.slope
    distance = limit - latter.level - pace * (len(absmax) - 1 - points[-1][0])
    if distance <= 0 or distance / pace > REACH * len(absmax):
        return None
    slowest = min(whole.low, pace)
    fastest = max(whole.high, latter.high_at(0.9), pace)
    return Announcement(distance / pace, distance / fastest, distance / slowest, 1 / pace)


@dataclass(frozen=True)
class _Fit(Trend):
    error: float = 0.0

    def low_at(self, confidence: float) -> float:
        return self.slope - _quantile(confidence) * self.error

    def high_at(self, confidence: float) -> float:
        return self.slope + _quantile(confidence) * self.error


def trend(points: Sequence[tuple[float, float]]) -> _Fit:
    """The median slope of ``(step, value)`` points, and how far it may be off."""
    slope = median((b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2))
    intercept = median(value - slope * step for step, value in points)
    residuals = [value - intercept - slope * step for step, value in points]
    error = _slope_error(points, residuals, slope)
    z = _quantile(CONFIDENCE)
    level = intercept + slope * points[-1][0]
    return _Fit(slope, slope - z * error, slope + z * error, level, error)


def _slope_error(
    points: Sequence[tuple[float, float]], residuals: Sequence[float], slope: float
) -> float:
    steps = [step for step, _ in points]
    spread = math.sqrt(sum((step - fmean(steps)) ** 2 for step in steps))
    noise = math.sqrt(fmean([r * r for r in residuals]))
    memory = min(max(_autocorrelation(residuals), 0.0), 0.95)
    correlated = noise / spread * math.sqrt((1 + memory) / (1 - memory))
    # A random walk of n steps of size s ends s * sqrt(n) away: as a slope, s / sqrt(n) per step.
    jumps = [b - a - slope * (t - s) for (s, a), (t, b) in pairwise(points)]
    # Noise around a line makes neighbouring jumps cancel, and a walk does not: only what is left counts.
    kept = 1 + 2 * min(_autocorrelation(jumps), 0.0)
    length = steps[-1] - steps[0]
    walk = math.sqrt(fmean([j * j for j in jumps]) * max(kept, 0.0) * len(jumps)) / length
    return max(correlated, walk)


def _autocorrelation(values: Sequence[float]) -> float:
    mean = fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    return sum((a - mean) * (b - mean) for a, b in pairwise(values)) / total if total else 0.0


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _thinned(values: Sequence[float]) -> list[tuple[float, float]]:
    """At most ``POINTS`` points, each the median of its neighbours, with their middle as the step."""
    size = math.ceil(len(values) / POINTS)
    # From the end, so that the latest step is always in.
    starts = range(len(values) % size, len(values), size) if size > 1 else range(len(values))
    return [(start + (size - 1) / 2, median(values[start : start + size])) for start in starts]
