"""Dtypes that were declared for a model, against those that it has in training and in rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.precision.declared_dtypes import declared_differences
from halfguard.records.finding import Finding


def check_hd121(setup: TrainingSetup) -> Iterator[Finding]:
    """Find differences between declared and effective dtypes of a sharded model, and of its rollout copy."""
    if setup.model is None:
        return
    for found in declared_differences(
        setup.model, setup.optimizers, setup.asked, rollout=setup.rollout
    ):
        yield Finding(code="HD121", severity="warning", **asdict(found))
