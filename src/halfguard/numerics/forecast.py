"""The step at which a layer will overflow, from the trend of its largest magnitude; only on strong evidence.

Growing activations grow by a factor per step: a straight line in log2. The slope is the median of the slopes
between all pairs of points (Theil and Sen), which spikes do not change. Four things look like a trend and
are none. Each has its test:

* correlated noise. Neighbouring steps resemble each other, so n steps are weaker evidence than n independent
  ones. The interval is widened by the residuals' autocorrelation, and by the slope that a random walk with
  the same steps would have by chance;
* the start of training, steep and then flat: the latter half must rise too, at no less than half the pace;
* growth that slows down. A magnitude that grows by the same amount per step is concave in log2, and so is
  one that levels off. If the pace in log2 falls, the overflow is expected between the two extensions, that
  of the factor and that of the amount (their geometric mean);
* a slope that leads far beyond the data: no overflow is predicted further ahead than the steps so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import NormalDist, fmean, median

from halfguard.formats import FP16
from halfguard.records.ranges import Forecast

LIMIT = math.log2(FP16.largest)
MAX_POINTS = 64  # more are reduced to this many medians: the cost is quadratic
MIN_POINTS = 12
CONFIDENCE = 0.999
STEADY = 0.8  # of the whole slope: a latter half that rises as fast grows by a factor per step
MAX_AHEAD = 1.0  # times the steps so far; further ahead a straight line is a guess


@dataclass(frozen=True)
class Trend:
    """A slope per step, the value at the last point, and the standard error of the slope."""

    slope: float
    level: float
    error: float

    def low_at(self, confidence: float) -> float:
        return self.slope - _quantile(confidence) * self.error

    def high_at(self, confidence: float) -> float:
        return self.slope + _quantile(confidence) * self.error


def forecast(absmax: Sequence[float], module: str = "") -> Forecast | None:
    """Predict an overflow from the largest outputs of consecutive steps; None if there is no trend.

    None as well if a value is not finite: then the overflow has already happened.
    """
    if not all(math.isfinite(value) and value > 0 for value in absmax):
        return None
    points = _downsample([math.log2(value) for value in absmax])
    if len(points) < MIN_POINTS:
        return None
    whole, latter = fit_trend(points), fit_trend(points[len(points) // 2 :])
    # The latter half has too few points for a strict interval: its slope must be positive and at least half
    # of the whole's. The whole must clearly rise, or its interval has no useful end.
    certain = whole.slope > 0 and whole.low_at(CONFIDENCE) >= whole.slope / 4
    if not certain or latter.slope < whole.slope / 2 or latter.low_at(0.9) <= 0:
        return None
    pace = latter.slope
    distance = LIMIT - latter.level - pace * (len(absmax) - 1 - points[-1][0])
    if distance <= 0:
        return None
    ahead, most = distance / pace, MAX_AHEAD
    if pace < STEADY * whole.slope:
        most = MAX_AHEAD / 2
        ahead = math.sqrt(ahead * _linear_ahead(points))
    if ahead > most * len(absmax):
        return None
    slowest = min(whole.low_at(CONFIDENCE), pace)
    fastest = max(whole.high_at(CONFIDENCE), latter.high_at(0.9), pace)
    high = max(distance / slowest, ahead)
    return Forecast(
        module=module, doubling=1 / pace, steps=ahead, low=distance / fastest, high=high
    )


def _linear_ahead(points: Sequence[tuple[float, float]]) -> float:
    """Return the steps until the limit for a magnitude that grows by the same amount per step.

    Infinite if the amounts get smaller: then it levels off.
    """
    shares = [(step, 2 ** (value - LIMIT)) for step, value in points]
    former, latter = (fit_trend(part) for part in _halves(shares))
    if latter.slope <= 0 or latter.slope < STEADY * former.slope:
        return math.inf
    return (1 - latter.level) / latter.slope


def _halves(points: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return points[: len(points) // 2], points[len(points) // 2 :]


def fit_trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Return the median slope of ``(step, value)`` points and its error."""
    slope = median((b - a) / (t - s) for (s, a), (t, b) in combinations(points, 2))
    intercept = median(value - slope * step for step, value in points)
    residuals = [value - intercept - slope * step for step, value in points]
    level = intercept + slope * points[-1][0]
    return Trend(slope, level, _slope_error(points, residuals, slope))


def _slope_error(
    points: Sequence[tuple[float, float]], residuals: Sequence[float], slope: float
) -> float:
    steps = [step for step, _ in points]
    spread = math.sqrt(sum((step - fmean(steps)) ** 2 for step in steps))
    noise = math.sqrt(fmean([r * r for r in residuals]))
    correlation = min(max(_autocorrelation(residuals), 0.0), 0.95)
    correlated = noise / spread * math.sqrt((1 + correlation) / (1 - correlation))
    # A random walk of n steps of size s ends s * sqrt(n) away: as a slope, s / sqrt(n) per step.
    jumps = [b - a - slope * (t - s) for (s, a), (t, b) in pairwise(points)]
    # Noise around a line makes neighbouring jumps cancel, a random walk does not: only the rest counts.
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


def _downsample(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return at most ``MAX_POINTS`` points: medians of neighbours, with the middle of their steps."""
    size = math.ceil(len(values) / MAX_POINTS)
    # Aligned at the end, so that the latest step is always included.
    starts = range(len(values) % size, len(values), size) if size > 1 else range(len(values))
    return [(start + (size - 1) / 2, median(values[start : start + size])) for start in starts]
