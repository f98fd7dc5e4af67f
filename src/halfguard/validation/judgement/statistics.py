"""A candidate's loss of quality with a confidence interval: pure functions on arrays.

With ``b`` the metric of the baseline and ``x`` that of a candidate with the same seed, the loss of quality
is the ratio of means ``r = mean(b - x) / |mean(b)|`` (with the opposite sign if lower is better). 0.01 means
one percent worse; a negative number means better. ``r`` is compared with a threshold by the *excess*

    e = (b - x) - threshold * |b|

whose mean is negative exactly if ``r`` is below the threshold. So one paired t-test decides. It is exact for
normal noise, although the denominator is itself measured (Fieller 1954). The interval for ``r`` contains the
thresholds that this test does not reject.

Arrays have the seeds on their last axis; all other axes are broadcast, so thousands of simulated studies use
the same code as a real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

LEVEL = 0.025  # probability of each wrong claim: one end of a 95% interval
MIN_PAIRS = 3  # with fewer nothing is claimed: two numbers cannot show their own noise
POWER = 0.9  # probability of a decision with the recommended number of further seeds
MAX_PAIRS = 1000  # a study that needs more is too close to a threshold to decide


@dataclass(frozen=True)
class Criteria:
    """Thresholds as fractions of the baseline's mean, and the direction of the metric."""

    passing: float = 0.01
    marginal: float = 0.02
    higher_is_better: bool = True


class Claims(NamedTuple):
    """For each verdict, the p-value of its claim: the probability of such data if the claim is false."""

    passes: Floats  # the loss is below ``passing``
    marginal: Floats  # it is above ``passing`` and below ``marginal``
    fails: Floats  # it is above ``marginal``


class Interval(NamedTuple):
    """The loss of quality and its limits, which are infinite if the baseline's mean may be zero."""

    loss: Floats
    low: Floats
    high: Floats


def losses(baseline: ArrayLike, candidate: ArrayLike, *, higher_is_better: bool) -> Floats:
    """Return how much worse each run of the candidate is than its pair, in units of the metric."""
    difference = np.asarray(baseline, np.float64) - np.asarray(candidate, np.float64)
    return difference if higher_is_better else -difference


def excess(
    baseline: ArrayLike, candidate: ArrayLike, threshold: float, criteria: Criteria
) -> Floats:
    """Return the loss above ``threshold`` for each seed; its mean is negative if the loss is below it."""
    lost = losses(baseline, candidate, higher_is_better=criteria.higher_is_better)
    return lost - threshold * _positive_baseline(baseline)


def claims(baseline: ArrayLike, candidate: ArrayLike, criteria: Criteria) -> Claims:
    """Return the p-values of the three claims, for one candidate and a fixed number of seeds."""
    below_pass = p_below_zero(excess(baseline, candidate, criteria.passing, criteria))
    below_marginal = p_below_zero(excess(baseline, candidate, criteria.marginal, criteria))
    return Claims(below_pass, np.maximum(1 - below_pass, below_marginal), 1 - below_marginal)


def p_below_zero(values: Floats) -> Floats:
    """Return the p-value of "the mean is below zero": a one-sided t-test over the last axis."""
    values = values / power_of_two_unit(values)
    mean, deviation, count = values.mean(-1), values.std(-1, ddof=1), values.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / deviation * np.sqrt(count)
    # Without noise the sign of the mean decides; a mean of zero claims nothing.
    t = np.where(deviation > 0, t, np.where(mean < 0, -np.inf, np.inf))
    p: Floats = special.stdtr(count - 1, t)
    return p


def power_of_two_unit(values: Floats) -> Floats:
    """Return a power of two near the largest value: after division by it, squares cannot overflow."""
    _, exponent = np.frexp(np.abs(values).max(-1, keepdims=True))
    unit: Floats = np.ldexp(1.0, np.clip(exponent, -1000, 1000))
    return unit


def interval(
    baseline: ArrayLike, candidate: ArrayLike, criteria: Criteria, level: float = LEVEL
) -> Interval:
    """Return the loss of quality with its two-sided interval, ``level`` outside each end."""
    base = _positive_baseline(baseline)
    lost = losses(baseline, candidate, higher_is_better=criteria.higher_is_better)
    base, lost = np.broadcast_arrays(base, lost)
    base_unit, lost_unit = power_of_two_unit(base), power_of_two_unit(lost)
    base, lost, unit = base / base_unit, lost / lost_unit, (lost_unit / base_unit)[..., 0]
    count = lost.shape[-1]
    base_mean, mean = base.mean(-1), lost.mean(-1)
    factor = stats.t.ppf(1 - level, count - 1) ** 2 / count
    covariance = ((base - base_mean[..., None]) * (lost - mean[..., None])).sum(-1) / (count - 1)
    # Thresholds r with (mean - r base_mean)^2 <= factor * var(lost - r base): a quadratic in r.
    square = base_mean**2 - factor * base.var(-1, ddof=1)
    middle = mean * base_mean - factor * covariance
    rest = mean**2 - factor * lost.var(-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.sqrt(np.maximum(middle**2 - square * rest, 0)) / square
        centre, loss = middle / square, mean / base_mean
    known = square > 0
    low = np.where(known, unit * (centre - half), -np.inf)
    return Interval(unit * loss, low, np.where(known, unit * (centre + half), np.inf))


def noise(baseline: ArrayLike, candidate: ArrayLike, criteria: Criteria) -> Floats:
    """Return the standard deviation of the paired losses, as a fraction of the baseline's mean."""
    lost = losses(baseline, candidate, higher_is_better=criteria.higher_is_better)
    unit = power_of_two_unit(lost)
    base_mean = _positive_baseline(baseline).mean(-1)
    spread: Floats = (lost / unit).std(-1, ddof=1) / base_mean * unit[..., 0]
    return spread


def holm(p: Floats) -> Floats:
    """Return p-values adjusted for several candidates, the last axis (Holm 1979).

    The probability that any claim is wrong stays at the level, for any dependence between candidates.
    """
    count = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ordered = np.take_along_axis(p, order, -1) * (count - np.arange(count))
    rising = np.minimum(np.maximum.accumulate(ordered, axis=-1), 1.0)
    adjusted = np.empty_like(rising)
    np.put_along_axis(adjusted, order, rising, -1)
    return adjusted


def seeds_needed(distances: ArrayLike, spread: float, level: float = LEVEL) -> int | None:
    """Return how many pairs give claims at these distances from their thresholds with 90% probability.

    ``distances`` and ``spread`` are fractions of the baseline's mean. None if ``MAX_PAIRS`` are not enough.
    """
    away = np.atleast_1d(np.asarray(distances, np.float64))
    if np.any(away <= 0):
        return None
    low, high = MIN_PAIRS - 1, MAX_PAIRS
    if _miss_probability(high, away, spread, level) > 1 - POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _miss_probability(middle, away, spread, level) > 1 - POWER:
            low = middle
        else:
            high = middle
    return high


def _miss_probability(count: int, away: Floats, spread: float, level: float) -> float:
    if spread == 0:
        return 0.0
    limit = stats.t.ppf(level, count - 1)
    missed = stats.nct.sf(limit, count - 1, -away / spread * np.sqrt(count))
    return float(np.sum(missed))


def _positive_baseline(baseline: ArrayLike) -> Floats:
    """Return the baseline's metric, negated if its mean is negative, as for log-likelihoods."""
    values = np.asarray(baseline, np.float64)
    positive: Floats = values * np.where(values.mean(-1, keepdims=True) < 0, -1.0, 1.0)
    return positive
