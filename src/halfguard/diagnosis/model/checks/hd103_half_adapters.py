"""HD103: adapters in 16 bits over a frozen base in 16 bits.

The base may stay as it is: it is not updated, so half loses nothing there. The adapters are updated, and
in half they lose every small update; with a GradScaler, FP16 ones are refused altogether.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import counted, listed, spoken
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find half parameters that are trained beside half parameters that are not."""
    found = subject.half_trained
    if not found or not subject.frozen_half:
        return
    dtype = spoken(found[0].tensor.dtype)
    yield Finding(
        code="HD103",
        severity="error",
        message=f"{counted(len(found), 'adapter parameter')} {dtype}, over a frozen half base: "
        f"{listed(one.name for one in found)}.",
        subject=found[0].name,
        why="Small updates to them are rounded away"
        + (
            '; a GradScaler refuses them: "Attempting to unscale FP16 gradients."'
            if dtype == "float16"
            else "."
        ),
        cure=subject.half_cure,
    )
