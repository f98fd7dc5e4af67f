"""HD101: the forward pass runs in another precision than the one asked for."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.measured_precision import in_words
from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Compare what was asked for with what was measured."""
    found = subject.effective
    if found is None or found.as_asked:
        return
    cure = subject.advice.precision
    if subject.frozen_half:  # which may stay as it is
        cure = cure.replace("model.float()", "halfguard.upcast_trainable(model)")
    yield Finding(
        code="HD101",
        message=f"{found.asked} was asked for, and the forward pass ran {in_words(found.got)} "
        f"({found.evidence[0]}).",
        subject="precision",
        why=found.why,
        cure=cure,
    )
