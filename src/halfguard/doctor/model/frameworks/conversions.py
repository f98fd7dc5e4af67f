"""A precision's name as the two choices behind it, and the lines that lead from one to another."""

from __future__ import annotations

_CONVERSION = {"fp32": "model.float()", "fp16": "model.half()", "bf16": "model.bfloat16()"}
_DTYPE = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def parts(name: str) -> tuple[str, str]:
    """The dtypes of the weights and of autocast, by their short names; ``"off"`` for no autocast."""
    short, _, kind = name.partition("-")
    weights = short if kind in ("", "weights", "true") else "fp32"
    return weights, short if kind in ("mixed", "weights") else "off"


def conversion(asked: str | None, got: str) -> str:
    """The line that gives the weights the dtype that was asked for; empty if they have it."""
    if asked is None or parts(asked)[0] == parts(got)[0]:
        return ""
    return _CONVERSION.get(parts(asked)[0], "")


def region(asked: str | None, got: str, device: str) -> str:
    """The line that opens the autocast that was asked for; empty if it was on, or off, already."""
    if asked is None or parts(asked)[1] == parts(got)[1]:
        return ""
    wanted = parts(asked)[1]
    how = "enabled=False" if wanted == "off" else f"dtype={_DTYPE[wanted]}"
    return f'with torch.autocast("{device}", {how}):  # around the forward pass'


def difference(asked: str, got: str) -> str:
    """In which of the two choices the names differ, in words."""
    (_, wanted), (weights, autocast) = parts(asked), parts(got)
    facts = []
    if parts(asked)[0] != weights:
        facts.append(f"The trained weights are {weights}.")
    if wanted != autocast:
        state = "off" if autocast == "off" else f"on, in {autocast},"
        facts.append(f"Autocast was {state} in the forward pass.")
    return " ".join(facts)
