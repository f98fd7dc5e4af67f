"""How much quality a candidate loses, with the doubt that few seeds leave: pure functions on arrays.

With ``b`` the metric of the baseline and ``x`` that of a candidate under the same seed, the loss of quality
is the ratio of means ``r = mean(b - x) / |mean(b)|`` (the sign turned where lower is better); 0.01 means
one percent worse, a negative number better. Whether ``r`` lies below a threshold is asked of the *excess*

    e = (b - x) - threshold * |b|

whose mean is negative exactly if ``r`` is below the threshold. So one t-test of paired numbers answers it,
and answers it exactly for normal noise, although the denominator is itself measured (Fieller 1954). The
interval for ``r`` holds the thresholds that this test does not reject.

Arrays have the seeds on their last axis; everything before it is broadcast, so thousands of simulated
studies go through the same lines as a real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

LEVEL = 0.025  # chance of each wrong claim: the ends of a 95% interval
FEWEST = 3  # pairs below which nothing is claimed: two numbers cannot show their own noise
POWER = 0.9  # chance of an answer that the number of further seeds is computed for
MOST = 1000  # seeds beyond which the answer is "too close to the threshold to tell"


@dataclass(frozen=True)
class Terms:
    """What is asked: thresholds as shares of the baseline's mean, and which way the metric points."""

    passing: float = 0.01
    marginal: float = 0.02
    higher_is_better: bool = True


class Claims(NamedTuple):
    """For each verdict the p-value of its claim: how easily chance alone would look like this."""

    passes: Floats  # the loss is below ``passing``
    marginal: Floats  # it is above ``passing`` and below ``marginal``
    fails: Floats  # it is above ``marginal``


class Interval(NamedTuple):
    """The loss of quality, and between what it lies; infinite where the baseline's mean may be zero."""

    loss: Floats
    low: Floats
    high: Floats


def losses(baseline: ArrayLike, candidate: ArrayLike, *, higher_is_better: bool) -> Floats:
    """By how much each run of the candidate is worse than its pair, in units of the metric."""
    difference = np.asarray(baseline, np.float64) - np.asarray(candidate, np.float64)
    return difference if higher_is_better else -difference


def excess(baseline: ArrayLike, candidate: ArrayLike, threshold: float, terms: Terms) -> Floats:
    """The loss beyond ``threshold``, seed by seed; negative on average if the loss is below it."""
    lost = losses(baseline, candidate, higher_is_better=terms.higher_is_better)
    return lost - threshold * _size(baseline)


def claims(baseline: ArrayLike, candidate: ArrayLike, terms: Terms) -> Claims:
    """The p-values of the three claims, for one candidate and a number of seeds fixed in advance."""
    below_pass = below_zero(excess(baseline, candidate, terms.passing, terms))
    below_marginal = below_zero(excess(baseline, candidate, terms.marginal, terms))
    return Claims(below_pass, np.maximum(1 - below_pass, below_marginal), 1 - below_marginal)


def below_zero(values: Floats) -> Floats:
    """The p-value of "the mean is below zero": one-sided t-test over the last axis."""
    values = values / unit_of(values)
    return below_zero_from(values.mean(-1), values.std(-1, ddof=1), values.shape[-1])


def below_zero_from(mean: Floats, deviation: Floats, count: ArrayLike) -> Floats:
    """The same, from mean, standard deviation and number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / deviation * np.sqrt(count)
    # Without any noise the sign of the mean is the answer; a mean of zero claims nothing.
    t = np.where(deviation > 0, t, np.where(mean < 0, -np.inf, np.inf))
    p: Floats = special.stdtr(np.asarray(count) - 1, t)
    return p


def unit_of(values: Floats) -> Floats:
    """A power of two of the size of the largest, so that squares of what a diverged run says still fit."""
    _, exponent = np.frexp(np.abs(values).max(-1, keepdims=True))
    unit: Floats = np.ldexp(1.0, np.clip(exponent, -1000, 1000))
    return unit


def interval(
    baseline: ArrayLike, candidate: ArrayLike, terms: Terms, level: float = LEVEL
) -> Interval:
    """The loss of quality with its two-sided interval, ``level`` beyond each end."""
    size = _size(baseline)
    lost = losses(baseline, candidate, higher_is_better=terms.higher_is_better)
    size, lost = np.broadcast_arrays(size, lost)
    of_size, of_lost = unit_of(size), unit_of(lost)
    size, lost, unit = size / of_size, lost / of_lost, (of_lost / of_size)[..., 0]
    count = lost.shape[-1]
    across, mean = size.mean(-1), lost.mean(-1)
    reach = stats.t.ppf(1 - level, count - 1) ** 2 / count
    covariance = ((size - across[..., None]) * (lost - mean[..., None])).sum(-1) / (count - 1)
    # thresholds r with (mean - r across)^2 <= reach * var(lost - r size): a quadratic in r
    square = across**2 - reach * size.var(-1, ddof=1)
    middle = mean * across - reach * covariance
    rest = mean**2 - reach * lost.var(-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.sqrt(np.maximum(middle**2 - square * rest, 0)) / square
        centre, loss = middle / square, mean / across
    known = square > 0
    low = np.where(known, unit * (centre - half), -np.inf)
    return Interval(unit * loss, low, np.where(known, unit * (centre + half), np.inf))


def noise(baseline: ArrayLike, candidate: ArrayLike, terms: Terms) -> Floats:
    """The standard deviation of the paired losses, as a share of the baseline's mean."""
    lost = losses(baseline, candidate, higher_is_better=terms.higher_is_better)
    unit = unit_of(lost)
    spread: Floats = (lost / unit).std(-1, ddof=1) / _size(baseline).mean(-1) * unit[..., 0]
    return spread


def holm(p: Floats) -> Floats:
    """Adjusted p-values over the last axis, the candidates (Holm 1979): whatever their dependence, the
    chance that any claim at all is wrong stays at the level.
    """
    count = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ordered = np.take_along_axis(p, order, -1) * (count - np.arange(count))
    rising = np.minimum(np.maximum.accumulate(ordered, axis=-1), 1.0)
    adjusted = np.empty_like(rising)
    np.put_along_axis(adjusted, order, rising, -1)
    return adjusted


def seeds_needed(distances: ArrayLike, spread: float, level: float = LEVEL) -> int | None:
    """Pairs after which claims at these distances from their thresholds are made with 90% chance.

    ``distances`` and ``spread`` are in units of the baseline's mean. None if ``MOST`` would not do.
    """
    away = np.atleast_1d(np.asarray(distances, np.float64))
    if np.any(away <= 0):
        return None
    low, high = FEWEST - 1, MOST
    if _missed(high, away, spread, level) > 1 - POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _missed(middle, away, spread, level) > 1 - POWER:
            low = middle
        else:
            high = middle
    return high


def _missed(count: int, away: Floats, spread: float, level: float) -> float:
    if spread == 0:
        return 0.0
    limit = stats.t.ppf(level, count - 1)
    missed = stats.nct.sf(limit, count - 1, -away / spread * np.sqrt(count))
    return float(np.sum(missed))


def _size(baseline: ArrayLike) -> Floats:
    """The baseline's metric, its sign turned where its mean is negative: log-likelihoods are."""
    values = np.asarray(baseline, np.float64)
    turned: Floats = values * np.where(values.mean(-1, keepdims=True) < 0, -1.0, 1.0)
    return turned
