"""The lines that lead from the precision that ran to the one that was asked for, and what lies between."""

from __future__ import annotations

from halfguard.diagnosis.model.measured_precision import Ran, named
from halfguard.diagnosis.model.wording import listed

CONVERSION = {
    "fp32": "model.float()",
    "fp16": "model.half()",
    "bf16": "model.bfloat16()",
    "fp64": "model.double()",
}
DTYPE = {
    "fp32": "torch.float32",
    "fp16": "torch.float16",
    "bf16": "torch.bfloat16",
    "fp64": "torch.float64",
}


def conversion(asked: str | None, ran: Ran) -> str:
    """The line that gives the weights the dtype that was asked for; empty if they have it.

    Most of them may have it: without autocast, another precision comes from the rest, or from casts.
    """
    if asked is None:
        return ""
    wanted = named(asked)
    line = CONVERSION.get(wanted.weights, "")
    if wanted.weights != ran.weights:
        return line
    if wanted.autocast == ran.autocast == "off" and asked != ran.name:
        return f"{line}  # the whole of it, without casts inside"
    return ""


def region(asked: str | None, ran: Ran, device: str) -> str:
    """The line that opens the autocast that was asked for; empty if it was on, or off, everywhere."""
    wanted = "off" if asked is None else named(asked).autocast
    if asked is None or (wanted == ran.autocast and (wanted == "off" or not ran.partly)):
        return ""
    if wanted != "off":
        return f'with torch.autocast("{device}", dtype={DTYPE[wanted]}):  # around the forward pass'
    where = "in place of the one inside the model" if ran.partly else "around the forward pass"
    return f'with torch.autocast("{device}", enabled=False):  # {where}'


def difference(asked: str | None, ran: Ran) -> str:
    """In which of the two choices they differ, in words."""
    if asked is None:
        return ""
    wanted, facts = named(asked), []
    if wanted.weights != ran.weights:
        facts.append(f"The trained weights are {ran.weights}.")
    if ran.partly:
        facts.append(f"Only a part of the work was in 16 bits; in more: {listed(ran.left)}.")
    elif wanted.autocast != ran.autocast:
        state = "off" if ran.autocast == "off" else f"on, in {ran.autocast},"
        facts.append(f"Autocast was {state} in the forward pass.")
    if not facts and asked != ran.name:
        facts.append(
            "Autocast was off: some of the weights, or a cast in the model, have another dtype."
            if ran.autocast == "off"
            else "Autocast was on, and does not cast the products that ran."
        )
    return " ".join(facts)
