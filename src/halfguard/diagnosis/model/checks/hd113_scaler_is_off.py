"""HD113: a loss scaler is there and switched off, and the forward pass runs in FP16.

``GradScaler()`` means CUDA. On a machine without it, torch warns once, and the scaler does nothing from
then on: ``scale(loss)`` is the loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.checks.hd112_no_scaler import fp16_runs
from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find a disabled scaler where FP16 needs one."""
    if subject.scaler is None or subject.scales or not subject.trains_through_fp16:
        return
    absent = subject.scaler._device == "cuda" and not torch.cuda.is_available()
    yield Finding(
        code="HD113",
        severity="error",
        message=f"{fp16_runs(subject)}, and the loss scaler is switched off.",
        subject="scaler",
        why="It was made for CUDA, which is not there: torch warns and switches it off."
        if absent
        else "It was made with enabled=False.",
        cure=f'scaler = torch.amp.GradScaler("{subject.device_type}")',
    )
