"""HD112: gradients pass through FP16 without a loss scale, and small ones become 0.

With a loss, the gradients of the batch are measured with and without a scale: if hardly any are lost, it is a
note. Without a loss it is a problem under autocast, since torch's recipe for FP16 includes the scaler. For
FP16 weights, which GradScaler refuses, it is a note.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding

_MANY = 0.01  # of the gradients that are not 0


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find FP16 forward passes in training without a scaler; HD113 reports a disabled scaler."""
    if not setup.trains_through_fp16 or not setup.for_training or setup.scaler is not None:
        return
    yield Finding(
        code="HD112",
        severity="error" if _is_problem(setup) else "note",
        message=f"{describe_fp16(setup)}, but there is no loss scaler.{_describe_lost(setup)}",
        subject="scaler",
        why="A gradient below 3e-8 is 0 in FP16, without a warning: layers stop learning.",
        cure=setup.advice.scaler,
    )


def _is_problem(setup: TrainingSetup) -> bool:
    if setup.gradients is not None:
        return setup.gradients.lost >= _MANY
    return torch.float16 not in setup.trained_dtypes


def _describe_lost(setup: TrainingSetup) -> str:
    if setup.gradients is None:
        return ""
    return f" In this batch {setup.gradients.lost:.1%} of the gradients are 0 that are not 0 with a scale."


def describe_fp16(setup: TrainingSetup) -> str:
    """Return the beginning of a sentence: the part of the forward pass that runs in FP16."""
    precision = setup.precision or ""
    if precision.startswith("fp16"):
        return f"the forward pass runs in {precision}"
    return "a part of the forward pass runs in float16"
