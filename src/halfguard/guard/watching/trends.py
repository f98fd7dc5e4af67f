"""Which line will overflow next: the growth of each line's largest magnitude over the sampled steps. Pure.

A run that levels off at half of the range looks, until then, like one that does not. So nothing is announced
early: a forecast is made when the overflow is ``HORIZON`` samples away or less. Growth is fitted to windows
of several lengths (``growth``), and all of them must say so. The longest does not follow noise, and must
clearly rise; the shortest sees first that growth slows down. Where loss or gradient show that training will
end the growth before the limit (``goals``), there is no forecast either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, log, log2, sqrt
from statistics import fmean, linear_regression, median, pstdev
from typing import NamedTuple

from halfguard.formats import for_dtype
from halfguard.guard.watching.growth import CLEAR, Growth, fit_growth, smooth
from halfguard.guard.watching.operation_maxima import Maximum, Place
from halfguard.records.watch import OverflowAhead, WatchedLayer

SHOWN = 100  # layers in a row of the journal


def leaves_range(one: Maximum) -> bool:
    """Return whether a result is at the end of the range or beyond: infinite, NaN, or a mask of finfo.min."""
    return not one.absmax < for_dtype(one.dtype).largest


def headroom(one: Maximum) -> float:
    """Return the bits until a result overflows its own format."""
    return log2(for_dtype(one.dtype).largest / one.absmax) if one.absmax else inf


def merge_calls(maxima: Iterable[Maximum]) -> dict[Place, Maximum]:
    """Return the largest result of each line over all of its calls."""
    found: dict[Place, Maximum] = {}
    for one in maxima:
        known = found.get(one.place)
        if known is None or not (isnan(known.absmax) or one.absmax <= known.absmax):
            found[one.place] = one
    return found


def layers_of(
    by_place: Mapping[Place, Maximum], maxima: Sequence[Maximum], harmless: set[Place]
) -> tuple[WatchedLayer, ...]:
    """Return the layers of a step; a line that is known to be harmless beyond the range does not count."""
    modules: dict[str | None, list[Maximum]] = {}
    for place, one in by_place.items():
        modules.setdefault(place.module, []).append(one)
    products: dict[str | None, list[Maximum]] = {}
    for one in maxima:
        if one.nonzero:
            products.setdefault(one.place.module, []).append(one)
    layers = []
    for module, some in modules.items():
        bits = {"forward": inf, "backward": inf}
        beyond = 0
        for one in some:
            if not leaves_range(one):
                bits[one.place.phase] = min(bits[one.place.phase], headroom(one))
            elif one.place not in harmless:
                bits[one.place.phase] = 0.0 if isfinite(one.absmax) else -inf
                beyond += 1
        layers.append(
            WatchedLayer(
                module=module,
                forward=round(bits["forward"], 2),
                backward=round(bits["backward"], 2),
                vanishing=round(vanishing_share(products.get(module, ())), 4),
                infinite=beyond,
            )
        )
    # Those with the least headroom, in their order.
    order = sorted(range(len(layers)), key=lambda i: min(layers[i].forward, layers[i].backward))
    return tuple(layers[i] for i in sorted(order[:SHOWN]))


def vanishing_share(gradients: Iterable[Maximum]) -> float:
    """Estimate the share of gradients that became 0 in FP16.

    A gradient that vanished cannot be told from one that was 0. Where magnitudes are spread evenly near 0,
    half as many values round to 0 as lie at the smallest number of FP16. Where most values that are left are
    subnormal, the zeros beside them were such values too.
    """
    total = lost = 0.0
    for one in gradients:
        nonzero, above_smallest, normal = one.nonzero
        if not nonzero:
            continue
        subnormal = (nonzero - normal) / nonzero
        zeros = one.numel - nonzero
        lost += max((nonzero - above_smallest) / 2, zeros * max(0.0, 2 * subnormal - 1))
        total += nonzero
    return lost / (total + lost) if total else 0.0


# Whether training itself will end a growth before the limit. Pure.
#
# A model that learns numbers of a certain size grows until it has reached them. Then its loss is at
# its lowest, and its gradient is 0. Both are extended over the magnitude. The root of the loss is a
# line for a squared error, and falls more and more steeply for an absolute one. The norm of the
# gradients is a line for a squared error too, and for the likelihood of a scale; the sign of the
# loss does not matter to it.


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


# In sampled steps:
WINDOWS = (12, 20, 28)
LEAST = 16  # fewer are no evidence
HORIZON = 20
PAST = 0.75  # of the samples so far: not further ahead than that
# Shares of the limit: a magnitude is not extended by a larger factor than 40, which is growth by a factor of
# 1.4 per sample over half the horizon; with diminishing returns, by none larger than 8.
NEAR = 1 / 40
NEAR_DIMINISHING = 1 / 8
_KEPT = 64  # sampled steps: magnitudes that come and go with the data rise to where they have been before
_TESTED = 8  # lines per step: those that would overflow first


class Sample(NamedTuple):
    """The largest magnitude of a line in a sampled step, as a share of the limit; the step's loss, and its
    gradient norm.
    """

    step: int
    share: float
    loss: float
    norm: float


class Trends:
    """The largest magnitudes of every line in the forward pass."""

    def __init__(self) -> None:
        self._samples: dict[Place, deque[Sample]] = {}
        self._last = -1  # the last sampled step

    def add(self, step: int, by_place: Mapping[Place, Maximum], loss: float, norm: float) -> None:
        """Add a sampled step. A line that left the range has nothing more to forecast."""
        self._last = step
        for place, one in by_place.items():
            if place.phase != "forward":
                continue
            if leaves_range(one) or one.absmax == 0:
                self._samples.pop(place, None)
                continue
            sample = Sample(step, one.absmax / for_dtype(one.dtype).largest, loss, norm)
            self._samples.setdefault(place, deque(maxlen=_KEPT)).append(sample)

    def forecasts(self) -> list[OverflowAhead]:
        """Return the lines that will overflow, the next one first."""
        rough = {
            place: ahead
            for place, samples in self._samples.items()
            if samples[-1].step == self._last  # others no longer run in half
            and (ahead := _rough_ahead(samples)) < 3 * HORIZON
        }
        found = []
        for place in sorted(rough, key=rough.__getitem__)[:_TESTED]:
            samples = list(self._samples[place])
            growth = growth_to_limit(samples)
            if growth is not None:
                found.append(_describe(place, samples[-1].step, growth))
        return sorted(found, key=lambda one: one.step)


def growth_to_limit(samples: Sequence[Sample]) -> Growth | None:
    """Return the growth of a line to the limit, if that is near; the slowest of the windows."""
    if len(samples) < LEAST:
        return None
    shortest = WINDOWS[0]
    steps, shares = [one.step for one in samples], smooth([one.share for one in samples])
    is_new_height = median(shares[-3:]) > max(shares[:-shortest])
    if shares[-1] < NEAR or not is_new_height:
        return None
    every = (steps[-1] - steps[-shortest]) / (shortest - 1)
    near = min(HORIZON, PAST * len(steps)) * every
    found: list[Growth] = []
    for size in WINDOWS:
        clear = CLEAR if size == WINDOWS[-1] else 0.0
        growth = fit_growth(steps[-size:], shares[-size:], clear)
        if growth is None or growth.ahead > near:
            return None
        found.append(growth)
    if _ends(shares, [one.loss for one in samples], [one.norm for one in samples]):
        return None
    slowest = max(found, key=lambda one: one.ahead)
    return Growth(
        slowest.ahead,
        min(one.earliest for one in found),
        max(one.latest for one in found),
        found[0].doubling,
    )


def _ends(shares: Sequence[float], losses: Sequence[float], norms: Sequence[float]) -> bool:
    """Return whether training will end the growth before the limit, or might, as far as can be told."""
    latest, all_of = slice(-WINDOWS[0], None), slice(-WINDOWS[-1], None)
    if has_goal(shares[latest], losses[latest], norms[latest]):
        return True
    is_far = shares[-1] < NEAR_DIMINISHING
    return is_far and has_diminishing_returns(shares[all_of], losses[all_of])


def _rough_ahead(samples: Sequence[Sample]) -> float:
    """Return the samples until the limit by a line in log2 through the latest; infinite if it falls."""
    size = WINDOWS[0]
    if len(samples) < LEAST:
        return inf
    recent = [one.share for one in list(samples)[-size:]]
    begin, end = median(recent[:4]), median(recent[-4:])
    return -log2(end) / log2(end / begin) * (size - 4) if end > begin else inf


def _describe(place: Place, step: int, ahead: Growth) -> OverflowAhead:
    return OverflowAhead(
        module=place.module,
        op=place.op,
        file=place.file,
        line=place.line,
        step=step + round(ahead.ahead),
        earliest=step + round(ahead.earliest),
        latest=step + ahead.latest,
        doubling=ahead.doubling,
    )
