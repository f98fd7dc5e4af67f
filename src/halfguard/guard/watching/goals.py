"""Whether training itself will end a growth before the limit. Pure.

A model that learns numbers of a certain size grows until it has reached them. Then its loss is at its lowest,
and its gradient is 0. Both are extended over the magnitude. The root of the loss is a line for a squared
error, and falls more and more steeply for an absolute one. The norm of the gradients is a line for a squared
error too, and for the likelihood of a scale; the sign of the loss does not matter to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt
from statistics import fmean, linear_regression, pstdev
from typing import NamedTuple

SURE = 3.0  # standard errors by which a line must fall


class _Line(NamedTuple):
    slope: float
    error: float  # standard error of the slope
    at_limit: float
    square: float  # mean of the squared residuals

    @property
    def falls(self) -> bool:
        return self.slope < -SURE * self.error


def has_goal(shares: Sequence[float], losses: Sequence[float], norms: Sequence[float]) -> bool:
    """Return whether the loss or the gradient may be 0 before the magnitude is at the limit."""
    may_lose_all = min(losses) > 0 and _may_end(shares, [sqrt(loss) for loss in losses])
    return may_lose_all or _may_end(shares, norms)


def has_diminishing_returns(shares: Sequence[float], losses: Sequence[float]) -> bool:
    """Return whether the loss falls by an amount per doubling of the magnitude, rather than per unit.

    The likelihood of a scale does so while the scale is learnt, and nothing tells how large it is before the
    magnitude is near: the norm of the gradients is constant until then.
    """
    by_doubling = _fit([log(share) for share in shares], losses)
    return by_doubling.falls and by_doubling.square < _fit(shares, losses).square


def _may_end(shares: Sequence[float], values: Sequence[float]) -> bool:
    line = _fit(shares, values)
    return line.falls and line.at_limit < 2 * line.error  # 95%


def _fit(x: Sequence[float], y: Sequence[float]) -> _Line:
    """Fit a line by least squares; the limit is at 1."""
    count = len(x)
    line = linear_regression(x, y)
    square = fmean([(b - line.intercept - line.slope * a) ** 2 for a, b in zip(x, y, strict=True)])
    error = sqrt(square * count / (count - 2)) / (pstdev(x) * sqrt(count))
    return _Line(line.slope, error, line.intercept + line.slope, square)
