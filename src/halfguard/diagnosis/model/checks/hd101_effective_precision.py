"""HD101: the forward pass runs in another precision than requested.

A framework that was asked for FP32 has its own autocast switched off. If one was on, with FP32 weights, the
code of the model or of the loss has entered it itself: that is a request too, and reported as a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.measured_precision import describe_precision
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Compare the measured precision with the requested one."""
    found = setup.effective
    if found is None or found.as_asked:
        return
    cure = setup.advice.precision
    if setup.has_frozen_half_base:  # the base may stay in half
        cure = cure.replace("model.float()", "halfguard.upcast_trainable(model)")
    yield Finding(
        code="HD101",
        severity="note" if _code_entered_autocast(setup) else "warning",
        message=f"{found.asked} was requested, but the forward pass ran {describe_precision(found.got)} "
        f"({found.evidence[0]}).",
        subject="precision",
        why=found.why,
        cure=cure,
    )


def _code_entered_autocast(setup: TrainingSetup) -> bool:
    measured = setup.measured
    if setup.framework == "plain" or setup.asked != "fp32" or measured is None:
        return False
    return measured.weights == "fp32" and measured.autocast != "off"
