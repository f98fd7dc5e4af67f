"""HD114: anomaly detection is on beside a loss scaler, which overflows on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Ask torch, and the framework, whether it is on."""
    on = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if not subject.scales or not (on or subject.detects_anomalies):
        return
    yield Finding(
        code="HD114",
        message="autograd's anomaly detection is on, and so is a loss scaler.",
        subject="detect_anomaly",
        why="A scaler finds its scale by overflowing and skipping; detection raises there instead, "
        "in a run that is well. It also slows every step.",
        cure="trainer = Trainer(detect_anomaly=False)"
        if subject.detects_anomalies
        else "torch.autograd.set_detect_anomaly(False)",
    )
