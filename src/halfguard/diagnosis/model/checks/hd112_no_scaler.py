"""HD112: gradients pass through FP16 without a loss scale, and small ones become 0."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find FP16 forward passes in training without a scaler; HD113 reports a disabled scaler."""
    if not setup.trains_through_fp16 or not setup.for_training or setup.scaler is not None:
        return
    yield Finding(
        code="HD112",
        severity="error",
        message=f"{describe_fp16(setup)}, but there is no loss scaler.",
        subject="scaler",
        why="A gradient below 3e-8 is 0 in FP16, without a warning: layers stop learning.",
        cure=setup.advice.scaler,
    )


def describe_fp16(setup: TrainingSetup) -> str:
    """Return the beginning of a sentence: the part of the forward pass that runs in FP16."""
    precision = setup.precision or ""
    if precision.startswith("fp16"):
        return f"the forward pass runs in {precision}"
    return "a part of the forward pass runs in float16"
