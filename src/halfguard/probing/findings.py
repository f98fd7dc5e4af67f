"""Findings from the numbers of a probe: what is wrong, where, why, and the cure."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from halfguard.catalogue import Severity
from halfguard.precision_names import Precision
from halfguard.probing.ranges import ScaleWindow
from halfguard.probing.training import MAX_SCALE, Failure, StepFault
from halfguard.records.autopsy import Culprit
from halfguard.records.finding import Finding
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, module_label

_PRODUCT = "Compute the product in float32: call .float() on its factors first."
_SUM = "Sum in float32: x.float().sum(), x.float().mean()."
_BY_OPERATION = {
    "log": "Take the logarithm of the logits instead: torch.nn.functional.logsigmoid, log_softmax or "
    "binary_cross_entropy_with_logits.",
    "exp": "Call .float() on the exponent, and subtract its maximum first if only ratios matter.",
    "to": "Do not cast to float16 here: its largest value is 65504, and values below 3e-8 become 0.",
    **dict.fromkeys(("mul", "pow", "square", "mm", "bmm", "addmm", "baddbmm", "dot"), _PRODUCT),
    **dict.fromkeys(("sum", "mean", "cumsum", "index_add", "scatter_add", "var", "norm"), _SUM),
    "div": "Call .float() on both operands, and keep the divisor away from 0.",
    "sqrt": "Call .float() first, and keep the argument of the root away from 0.",
}
_ANY = "Call .float() on the inputs of this line, or compute it under torch.autocast(..., enabled=False)."


def cure_of_line(culprit: Culprit) -> str:
    """Return what to change at the line of a culprit."""
    if culprit.kind != "op":
        return f"Correct {culprit.name}, which was not finite before the step began."
    return _BY_OPERATION.get(culprit.op, _ANY)


def describe_line(culprit: Culprit) -> str:
    """Return ``mul at train.py:12``."""
    place = f"{short_path(culprit.file)}:{culprit.line}" if culprit.file else culprit.place
    return f"{culprit.op} at {place}"


def short_path(file: str) -> str:
    """Return the path below the current folder, else the file's name: plans are shared between machines."""
    path = Path(file)
    inside = path.is_relative_to(Path.cwd())
    return os.path.relpath(path) if inside else path.name


MAX_LOST = 0.5  # share of a layer's gradients that may vanish at the loss scale in use
LOW_HEADROOM = 1.0  # bits of forward headroom; a layer with less overflows when its outputs double
_PLAN = "Find the modules that must stay in FP32: halfguard plan ENTRY -o plan.yaml"


def _finding(
    code: str,
    subject: str | None,
    message: str,
    why: str,
    cure: str,
    severity: Severity = "warning",
) -> Finding:
    return Finding(
        code=code, subject=subject, message=message, why=why, cure=cure, severity=severity
    )


def of_failure(failure: Failure | None, precision: str) -> Iterator[Finding]:
    """Yield HG601: the run itself failed."""
    if failure is not None:
        culprit = failure.culprit
        place = "" if culprit is None else f"; {str(culprit).splitlines()[0]}"
        message = f"the {precision} run ended at step {failure.step}: {failure.message}{place}."
        subject = None if culprit is None else culprit.module
        why = "Later steps were not run."
        yield _finding("HG601", subject, message, why, _cure(culprit, precision), "error")


def _cure(culprit: Culprit | None, precision: str) -> str:
    """Return the cure of a failed step: islands help neither in FP32 nor outside of modules."""
    if precision == Precision.FP32:
        return "FP32 fails as well, so islands cannot help. Check this line, the data and the learning rate."
    if culprit is not None and culprit.kind != "op":
        return cure_of_line(culprit)
    if culprit is not None and culprit.module is None:
        return f"No island covers this line. {cure_of_line(culprit)}"
    return _PLAN


def of_faults(faults: Sequence[StepFault], failure: Failure | None) -> Iterator[Finding]:
    """Yield HG601, or HG609 if it is swallowed: a line leaves the range of FP16; each line once."""
    failed = None if failure is None or failure.culprit is None else failure.culprit.place
    seen: dict[str, tuple[StepFault, int]] = {}
    for fault in faults:
        place = fault.raised if fault.culprit is None else fault.culprit.place
        seen[place] = seen.get(place, (fault, 0))[0], seen.get(place, (fault, 0))[1] + 1
    for place, (fault, count) in seen.items():
        if place != failed:
            yield _fault(fault, count)


def _fault(fault: StepFault, count: int) -> Finding:
    culprit = fault.culprit
    steps = (
        f"in step {fault.step}" if count == 1 else f"in {count} steps, first in step {fault.step}"
    )
    if culprit is None:
        message = f"in 16-bit precision the job raises {steps}: {fault.raised}."
        cure = "Run the step under torch.autocast to see the error."
        return _finding("HD100", None, message, "", cure, "error")
    where, cure = "outside every module", f"{describe_line(culprit)}: {cure_of_line(culprit)}"
    if culprit.module is not None:
        where, cure = f"in {module_label(culprit.module)}", _PLAN
    code, why = "HG601", "The loss or the gradients are then not finite."
    if culprit.swallowed:
        code = "HG609"
        why = "The loss and the gradients stay finite but are wrong, and no error is raised."
    message = f"{describe_line(culprit)}, {where}, overflows FP16 {steps}."
    place = {"path": short_path(culprit.file) or None, "line": culprit.line or None}
    found = _finding(code, culprit.module, message, why, cure, "error")
    return found.model_copy(update=place)


def of_lost_gradients(
    layers: tuple[LayerRange, ...], scale: float, window: ScaleWindow
) -> Iterator[Finding]:
    """Yield HG610: at the loss scale in use, most gradients of a layer are rounded to zero."""
    lost = [layer for layer in layers if layer.fits and layer.underflow_now > MAX_LOST]
    if lost:
        worst = max(lost, key=lambda layer: layer.underflow_now)
        yield _finding(
            "HG610",
            worst.module,
            f"{module_label(worst.module)}: {worst.underflow_now:.0%} of its gradients are rounded "
            f"to zero at loss scale {scale:g}.",
            f"{len(lost)} layers lose more than half of their gradients. At a loss scale of "
            f"{2.0**window.best:g}, this layer would lose {worst.underflow_best:.0%}.",
            "If these gradients are meant to be this small, raise the loss scale.",
        )


def of_layers(layers: tuple[LayerRange, ...]) -> Iterator[Finding]:
    """Yield HG601 and HG602: outputs beyond FP16, or close to it; HG603: gradients that no scale fits."""
    for layer in layers:
        room, module, label = layer.forward_headroom, layer.module, module_label(layer.module)
        # A number that is not finite ended the run: HG601 names the operation that made it.
        if -math.inf < room < LOW_HEADROOM:
            message = f"{label}: outputs reach {max(layer.forward):.3g}."
            if room < 0:
                why = (
                    f"FP16's largest value is 65504, {-room:.1f} bits below. The loss scale does not change "
                    "this."
                )
                yield _finding("HG601", module, message, why, _PLAN, "error")
            else:
                why = f"{room:.1f} bits are left before 65504, which is less than one doubling."
                yield _finding("HG602", module, message, why, _PLAN)
        if not layer.fits:
            yield _finding(
                "HG603",
                module,
                f"{label}: no loss scale fits its gradients.",
                f"Above {layer.scale_high:g} they overflow; below {_as_scale(layer.scale_low)} too many "
                "of them are rounded to zero.",
                "Normalize the layer's input, or make it an FP32 island: halfguard.fp32_island(module).",
            )


def of_scale_window(window: ScaleRange | None, layers: tuple[LayerRange, ...]) -> Iterator[Finding]:
    """Yield HG604: each layer has a scale, but no scale fits all layers."""
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
    yield _finding(
        "HG604",
        needs.module,
        "no loss scale fits all layers at once.",
        f"{module_label(needs.module)} needs at least {_as_scale(needs.scale_low)}, "
        f"{module_label(bounds.module)} overflows above {bounds.scale_high:g}.",
        "Make one of the two an FP32 island, or bring their gradients closer together.",
    )


def _as_scale(value: float | None) -> str:
    """Return a loss scale as text; no scaler goes beyond 2**24."""
    return (
        f"{value:g}"
        if value is not None and value <= MAX_SCALE
        else "any scale that a scaler can reach"
    )


def of_gains(gains: dict[str, float]) -> Iterator[Finding]:
    """Yield HG607: an initialisation that makes signals grow or vanish."""
    for name, gain in gains.items():
        yield _finding(
            "HG607",
            name,
            f"{name} is badly scaled: it multiplies its input by about {gain:.3g}.",
            "Each such layer reduces the headroom."
            if gain > MAX_GAIN
            else "Values that pass through the layer become 0, and so do its gradients.",
            "Initialize it with torch.nn.init.xavier_uniform_ or kaiming_uniform_.",
        )


# Gains outside are reported; usual initialisations lie between 0.1 and 1.5.
MAX_GAIN, MIN_GAIN = 4.0, 0.01


@torch.no_grad()
def find_bad_gains(model: nn.Module) -> dict[str, float]:
    """Return the gain of weights that multiply a signal of independent values too much or too little."""
    gains = {}
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            if weight.dim() < 2 or not weight.numel():
                continue
            gain = weight.double().square().mean().sqrt().item() * math.sqrt(
                _fan_in(module, weight)
            )
            if gain and math.isfinite(gain) and not MIN_GAIN <= gain <= MAX_GAIN:
                gains[f"{path}.{name}" if path else name] = gain
    return gains


def _fan_in(module: nn.Module, weight: Tensor) -> int:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1  # a row is looked up; nothing is summed
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return weight[0].numel()
    # The summed dimension of a custom weight is not known: the smaller one is the safe guess.
    return min(weight.shape[0], weight[0].numel())
