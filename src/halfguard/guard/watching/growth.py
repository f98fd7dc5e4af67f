"""The law by which a magnitude grows, fitted to a few samples. Pure.

Magnitudes grow in many ways: by a factor per step, by an amount per step, as a power of the step, faster and
faster, or more and more slowly. One family has them all: some power of the magnitude is a straight line over
the steps (Box and Cox). Power 0 stands for the logarithm, so it is growth by a factor; 1 is growth by an
amount; above 1 the amounts get smaller, as they do where growth levels off; below 0 the factor gets larger.
The power is the one with the highest likelihood, and the line leads to the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import expm1, inf, log, sqrt
from statistics import fmean, median

POWERS = tuple(power / 4 for power in range(-2, 13))
NOISE = 0.03  # relative; batches differ by more, and a fit to less would be one to rounding
CLEAR = 5.0  # standard errors by which the line must rise
# Powers whose log-likelihood is this near the best one's are possible as well: 95% for one parameter.
POSSIBLE = 2.0
MAX_RISE = 100.0  # of the logarithm; powers of more are beyond a float
_LEAST_ERROR = 1e-30  # a law without any noise has none


@dataclass(frozen=True)
class Growth:
    """Steps from the last sample to the limit, over all possible powers; ``doubling`` is in steps."""

    ahead: float
    earliest: float
    latest: float
    doubling: float


@dataclass(frozen=True)
class _Line:
    likelihood: float
    ahead: float
    soonest: float
    doubling: float
    rise: float  # in standard errors


def fit_growth(
    steps: Sequence[int], shares: Sequence[float], clear: float = CLEAR
) -> Growth | None:
    """Fit shares of the limit, each above 0 and below 1; None if they do not rise by ``clear`` errors."""
    logs = [log(share) for share in shares]
    if max(logs) - min(logs) > MAX_RISE:
        return None
    lines = list(_lines(steps, logs))
    best = max(lines, key=lambda line: line.likelihood)
    if best.rise <= clear:
        return None
    possible = [one for one in lines if one.likelihood >= best.likelihood - POSSIBLE]
    return Growth(
        ahead=best.ahead,
        earliest=min(one.soonest for one in possible),
        latest=max(one.ahead for one in possible),
        doubling=best.doubling,
    )


def smooth(values: Sequence[float]) -> list[float]:
    """Return running medians of three, in which single spikes disappear; the last by Tukey's end rule."""
    if len(values) < 3:
        return list(values)
    inner = [median(values[i - 1 : i + 2]) for i in range(1, len(values) - 1)]
    if len(inner) < 2:
        return [values[0], *inner, values[-1]]
    onward = inner[-1] * (inner[-1] / inner[-2]) ** 2  # the last two medians, extended
    return [values[0], *inner, median([values[-1], inner[-1], onward])]


def _lines(steps: Sequence[int], logs: Sequence[float]) -> Iterator[_Line]:
    """Fit a straight line for each power, by least squares.

    Magnitudes are divided by their geometric mean, so that residuals have the same unit for all powers.
    """
    count, middle, level = len(steps), fmean(steps), fmean(logs)
    offsets = [step - middle for step in steps]
    spread = sum(offset * offset for offset in offsets)
    for power in POWERS:
        values = [_transform(one - level, power) for one in logs]
        mean = fmean(values)
        slope = sum(map(float.__mul__, offsets, values)) / spread
        ends = [mean + slope * offset for offset in offsets]
        square = fmean([(value - end) ** 2 for value, end in zip(values, ends, strict=True)])
        error = sqrt(square * count / (count - 2) / spread)
        # The first to cross is a sample above the line.
        rest = max(_transform(-level, power) - ends[-1] - sqrt(square), 0.0)
        yield _Line(
            likelihood=-count / 2 * log(square + NOISE**2),
            ahead=rest / slope if slope > 0 else inf,
            soonest=rest / (slope + 2 * error) if slope + 2 * error > 0 else inf,
            doubling=log(2) * max(1 + power * ends[-1], 0.0) / slope if slope > 0 else inf,
            rise=slope / max(error, _LEAST_ERROR),
        )


def _transform(log_of: float, power: float) -> float:
    return expm1(power * log_of) / power if power else log_of
