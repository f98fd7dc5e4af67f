"""What to write instead of a line that leaves the range of half: for lines that no island covers."""

from __future__ import annotations

import os
from pathlib import Path

from halfguard.records.culprit import Culprit

_PRODUCT = "Compute the product in float32: call .float() on its factors first."
_SUM = "Sum in float32: x.float().sum(), x.float().mean()."
_BY_OPERATION = {
    "log": "Take the logarithm of the logits instead: torch.nn.functional.logsigmoid, log_softmax or "
    "binary_cross_entropy_with_logits.",
    "exp": "Call .float() on the exponent, and subtract its maximum first if only ratios matter.",
    "to": "Do not cast to half here: 65504 is its largest value, and below 6e-8 it holds 0.",
    **dict.fromkeys(("mul", "pow", "square", "mm", "bmm", "addmm", "baddbmm", "dot"), _PRODUCT),
    **dict.fromkeys(("sum", "mean", "cumsum", "index_add", "scatter_add", "var", "norm"), _SUM),
    "div": "Call .float() on both operands, and keep the divisor away from 0.",
    "sqrt": "Call .float() first, and keep the argument of the root away from 0.",
}
_ANY = "Call .float() on the inputs of this line, or compute it under torch.autocast(..., enabled=False)."


def cure_of_line(culprit: Culprit) -> str:
    """Return what to change at the line of a culprit."""
    if culprit.kind != "op":
        return f"Repair {culprit.name}: it was not finite before the step began."
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
