"""HD114: anomaly detection is on together with a loss scaler, which overflows on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find anomaly detection that is on in torch or in the framework."""
    on = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    if not setup.scaler_enabled or not (on or setup.detects_anomalies):
        return
    yield Finding(
        code="HD114",
        message="autograd's anomaly detection is on together with a loss scaler.",
        subject="detect_anomaly",
        why="A scaler finds its scale by skipping steps that overflow. Anomaly detection raises there "
        "instead, although the run is healthy. It also slows down every step.",
        cure="trainer = Trainer(detect_anomaly=False)"
        if setup.detects_anomalies
        else "torch.autograd.set_detect_anomaly(False)",
    )
