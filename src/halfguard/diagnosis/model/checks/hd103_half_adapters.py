"""HD103: adapters in 16 bits on a frozen base in 16 bits.

The base may stay in half: it is not updated, so nothing is lost. The adapters are updated, and in half they
lose every small update; with a GradScaler, FP16 adapters raise an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.measured_precision import dtype_name
from halfguard.diagnosis.model.training_setup import TrainingSetup, count_are, join_names
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find trained half parameters in a model that also has frozen half parameters."""
    found = setup.trained_in_half
    if not found or not setup.has_frozen_half_base:
        return
    dtype = dtype_name(found[0].tensor.dtype)
    scaler = ' A GradScaler raises "Attempting to unscale FP16 gradients."'
    yield Finding(
        code="HD103",
        severity="error",
        message=f"{count_are(len(found), 'trained parameter')} {dtype}, on a frozen half base: "
        f"{join_names(one.name for one in found)}.",
        subject=found[0].name,
        why="Small updates to them are rounded away." + (scaler if dtype == "float16" else ""),
        cure=setup.half_weights_cure,
    )
