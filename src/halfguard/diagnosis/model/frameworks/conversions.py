"""The lines that change the measured precision to the requested one, and the difference in words."""

from __future__ import annotations

from halfguard.diagnosis.model.measured_precision import (
    SHORT_NAMES,
    MeasuredPrecision,
    parse_precision,
)
from halfguard.diagnosis.model.training_setup import join_names

CONVERSIONS = {
    "fp32": "model.float()",
    "fp16": "model.half()",
    "bf16": "model.bfloat16()",
    "fp64": "model.double()",
}
DTYPE_NAMES = {short: str(dtype) for dtype, short in SHORT_NAMES.items()}


def conversion_line(asked: str | None, measured: MeasuredPrecision) -> str:
    """Return the line that gives the weights the requested dtype; empty if they have it.

    The line is also needed if most weights have it, but not all: without autocast, the others or casts in the
    model lead to another precision.
    """
    if asked is None:
        return ""
    wanted = parse_precision(asked)
    line = CONVERSIONS.get(wanted.weights, "")
    if wanted.weights != measured.weights:
        return line
    if wanted.autocast == measured.autocast == "off" and asked != measured.name:
        return f"{line}  # all of it, without casts inside"
    return ""


def autocast_line(asked: str | None, measured: MeasuredPrecision, device: str) -> str:
    """Return the line that opens the requested autocast; empty if autocast was as requested everywhere."""
    wanted = "off" if asked is None else parse_precision(asked).autocast
    partial = measured.is_partial
    if asked is None or (wanted == measured.autocast and (wanted == "off" or not partial)):
        return ""
    if wanted != "off":
        return f'with torch.autocast("{device}", dtype={DTYPE_NAMES[wanted]}):  # around the forward pass'
    where = "instead of the one inside the model" if partial else "around the forward pass"
    return f'with torch.autocast("{device}", enabled=False):  # {where}'


def explain_difference(asked: str | None, measured: MeasuredPrecision) -> str:
    """Say how weights and autocast differ from the requested ones."""
    if asked is None:
        return ""
    wanted, facts = parse_precision(asked), []
    if wanted.weights != measured.weights:
        facts.append(f"The trained weights are {measured.weights}.")
    if measured.is_partial:
        wider = join_names(measured.wider_modules)
        facts.append(f"Less than half of the FLOPs were in 16 bits. In more bits: {wider}.")
    elif wanted.autocast != measured.autocast:
        state = "off" if measured.autocast == "off" else f"on, in {measured.autocast},"
        facts.append(f"Autocast was {state} in the forward pass.")
    if not facts and asked != measured.name:
        facts.append(
            "Autocast was off: some weights have another dtype, or the model casts to one."
            if measured.autocast == "off"
            else "Autocast was on, but it does not cast the products that ran."
        )
    return " ".join(facts)
