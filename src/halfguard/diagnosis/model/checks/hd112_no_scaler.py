"""HD112: gradients pass through FP16 without a loss scale, and small ones vanish."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find FP16 forward passes in training without any scaler; one that is off is HD113's."""
    if not subject.trains_through_fp16 or not subject.trains or subject.scaler is not None:
        return
    yield Finding(
        code="HD112",
        severity="error",
        message=f"{fp16_runs(subject)}, and there is no loss scaler.",
        subject="scaler",
        why="A gradient below 3e-8 is 0 in FP16, and nothing reports it: layers stop learning.",
        cure=subject.advice.scaler,
    )


def fp16_runs(subject: Subject) -> str:
    """What of the forward pass runs in FP16, as the beginning of a sentence."""
    precision = subject.precision or ""
    if precision.startswith("fp16"):
        return f"the forward pass runs in {precision}"
    return "a part of the forward pass runs in float16"
