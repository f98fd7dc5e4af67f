"""HD113: the loss scaler is disabled, but the forward pass runs in FP16.

``GradScaler()`` means CUDA. On a machine without CUDA, torch warns once, and the scaler does nothing:
``scale(loss)`` returns the loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.checks.hd112_no_scaler import describe_fp16
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find a disabled scaler where FP16 needs one."""
    if setup.scaler is None or setup.scaler_enabled or not setup.trains_through_fp16:
        return
    absent = setup.scaler._device == "cuda" and not torch.cuda.is_available()
    yield Finding(
        code="HD113",
        severity="error",
        message=f"{describe_fp16(setup)}, but the loss scaler is disabled.",
        subject="scaler",
        why="It was created for CUDA, which is not available: torch warns and disables it."
        if absent
        else "It was created with enabled=False.",
        cure=f'scaler = torch.amp.GradScaler("{setup.device_type}")',
    )
