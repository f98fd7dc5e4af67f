"""From the maxima of a step's operations to the headroom of its layers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, log2

from halfguard.formats import for_dtype
from halfguard.guard.watching.operation_maxima import Maximum, Place
from halfguard.records.watch import WatchedLayer

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
        if known is None or not one.absmax <= known.absmax:  # a NaN stays
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
    return tightest(layers)


def tightest(layers: Sequence[WatchedLayer], count: int = SHOWN) -> tuple[WatchedLayer, ...]:
    """Return at most ``count`` layers, those with the least headroom, in their order."""
    order = sorted(range(len(layers)), key=lambda i: min(layers[i].forward, layers[i].backward))
    return tuple(layers[i] for i in sorted(order[:count]))


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
