"""HD112: gradients pass through FP16 without a loss scale, and small ones vanish."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.doctor.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find FP16 forward passes in training without any scaler; one that is off is HD113's."""
    precision = subject.precision or ""
    if not precision.startswith("fp16") or not subject.trains or subject.scaler is not None:
        return
    yield Finding(
        code="HD112",
        severity="error",
        message=f"the forward pass runs in {precision}, and there is no loss scaler.",
        subject="scaler",
        why="A gradient below 3e-8 is 0 in FP16, and nothing reports it: layers stop learning.",
        cure=subject.advise(subject.asked, precision).scaler,
    )
