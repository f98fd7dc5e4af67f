"""Dtypes that were declared for a model, against those that it has in training and in rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import torch

from halfguard.diagnosis.model.forward import RoundedOutput
from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.formats import dtype_name
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
    if setup.forward is not None and setup.forward.rounded:
        yield _rounded(list(setup.forward.rounded))


def _rounded(outputs: list[RoundedOutput]) -> Finding:
    """Report outputs that lose digits after the forward pass; a loss in BF16 is only logged with fewer."""
    dtype = outputs[0].dtype
    harmless = dtype is torch.bfloat16 and all(output.is_scalar for output in outputs)
    names = join_names(output.name or "its output" for output in outputs)
    return Finding(
        code="HD121",
        severity="note" if harmless else "warning",
        message=f"FSDP2 rounds what the model returns to {dtype_name(dtype)}: {names}.",
        why="output_dtype casts what was computed in FP32. Log-probabilities lose digits, and a loss in "
        "float16 overflows in the backward pass if the loss scale is 65536 or more.",
        cure="MixedPrecisionPolicy(..., output_dtype=torch.float32)",
    )
