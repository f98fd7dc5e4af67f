"""What the numbers of a probe mean, as findings: what, where, why, and the cure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from halfguard.probing.parameter_checks import LARGE, Stray
from halfguard.probing.training import Failure
from halfguard.records.finding import Finding
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import Forecast, LayerRange, module_label

NARROW = 1.0  # bits of forward headroom below which a layer is one doubling from overflow
_PLAN = "Find the modules that must stay in FP32: halfguard plan ENTRY -o plan.yaml"


def of_failure(failure: Failure | None, precision: str) -> Iterator[Finding]:
    """HG600: the run itself did not get through."""
    if failure is not None:
        culprit = failure.culprit
        place = "" if culprit is None else f"; {str(culprit).splitlines()[0]}"
        yield Finding(
            code="HG600",
            severity="error",
            message=f"the {precision} run ended at step {failure.step}: {failure.message}{place}.",
            subject=None if culprit is None else culprit.module,
            why="What comes after is not known.",
            cure=_PLAN,
        )


def of_layers(layers: tuple[LayerRange, ...]) -> Iterator[Finding]:
    """HG601 and HG602: outputs beyond FP16, or close to it; HG603: gradients that no scale fits."""
    for layer in layers:
        room = layer.forward_headroom
        # Where a number is not finite, the run broke: HG600 has named the one that made the first.
        if -math.inf < room < 0:
            yield Finding(
                code="HG601",
                severity="error",
                message=f"{module_label(layer.module)}: outputs reach {max(layer.forward):.3g}.",
                subject=layer.module,
                why=f"FP16 ends at 65504, {-room:.1f} bits below. No loss scale changes that.",
                cure=_PLAN,
            )
        elif 0 <= room < NARROW:
            yield Finding(
                code="HG602",
                message=f"{module_label(layer.module)}: outputs reach {max(layer.forward):.3g}.",
                subject=layer.module,
                why=f"{room:.1f} bits are left to 65504: less than one doubling.",
                cure=_PLAN,
            )
        if not layer.fits:
            yield Finding(
                code="HG603",
                message=f"{module_label(layer.module)}: no loss scale fits its gradients.",
                subject=layer.module,
                why=f"Above {layer.scale_high:g} they overflow; below {layer.scale_low:g} too many of "
                "them are rounded to zero.",
                cure="Normalise the layer's input, or make it an FP32 island: "
                "halfguard.fp32_island(module).",
            )


def of_window(window: ScaleRange | None, layers: tuple[LayerRange, ...]) -> Iterator[Finding]:
    """HG604: each layer has a scale, but there is none for all of them."""
    if window is not None:
        return
    lows = [layer for layer in layers if layer.scale_low is not None and layer.fits]
    highs = [layer for layer in layers if layer.scale_high is not None and layer.fits]
    if not lows or not highs:
        return
    needs = max(lows, key=lambda layer: layer.scale_low or 0.0)
    bounds = min(highs, key=lambda layer: layer.scale_high or 0.0)
    if (needs.scale_low or 0.0) <= (bounds.scale_high or 0.0):
        return
    yield Finding(
        code="HG604",
        message="no loss scale fits all layers at once.",
        subject=needs.module,
        why=f"{module_label(needs.module)} needs at least {needs.scale_low:g}, {module_label(bounds.module)} "
        f"overflows above {bounds.scale_high:g}.",
        cure="Make one of the two an FP32 island, or bring their gradients closer together.",
    )


def of_strays(found: list[Stray]) -> Iterator[Finding]:
    """HG605: meant to be a parameter."""
    for stray in found:
        made = (
            "" if stray.leaf else ", and is the result of an operation, so it can never be updated"
        )
        lost = "saved by state_dict() nor moved by to()"
        fate = (
            f"is trained, but neither {lost}" if stray.optimized else f"is neither trained, {lost}"
        )
        yield Finding(
            code="HG605",
            severity="note" if stray.optimized else "error",
            message=f"{stray.path} looks like a forgotten parameter.",
            subject=stray.path,
            why=f"It requires a gradient but is not registered: it {fate}{made}.",
            cure="Wrap it in torch.nn.Parameter."
            if stray.what == "tensor"
            else "Keep modules in torch.nn.ModuleList or ModuleDict, not in a plain list or dict.",
        )


def of_untrained(names: list[str]) -> Iterator[Finding]:
    """HG606: a parameter that the optimizer does not hold."""
    for name in names:
        yield Finding(
            code="HG606",
            message=f"{name} requires a gradient and is not in the optimizer.",
            subject=name,
            why="Its gradient is computed at every step, and never used.",
            cure=f"Pass it to the optimizer, or freeze it: {name}.requires_grad_(False).",
        )


def of_gains(gains: dict[str, float]) -> Iterator[Finding]:
    """HG607: an initialisation that makes signals grow or vanish."""
    for name, gain in gains.items():
        grows = gain > LARGE
        yield Finding(
            code="HG607",
            message=f"{name} is badly scaled: it multiplies a signal by about {gain:.3g}.",
            subject=name,
            why="Each such layer costs bits of headroom."
            if grows
            else "What passes through it vanishes, and so do its gradients.",
            cure="Draw it with torch.nn.init.xavier_uniform_ or kaiming_uniform_.",
        )


def of_forecasts(forecasts: tuple[Forecast, ...]) -> Iterator[Finding]:
    """HG608: an overflow that is coming."""
    for one in forecasts:
        yield Finding(
            code="HG608",
            message=f"{module_label(one.module)} will overflow in about {one.steps:.0f} steps "
            f"(between {one.low:.0f} and {one.high:.0f}).",
            subject=one.module,
            why=f"The largest output doubles every {one.doubling:.0f} steps.",
            cure="Lower the learning rate or add weight decay; or " + _PLAN[0].lower() + _PLAN[1:],
        )
