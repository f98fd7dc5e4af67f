"""HD115: transformers' Trainer leaves NaN out of the log of a 16-bit run.

With ``logging_nan_inf_filter`` a nonfinite loss is logged as the mean of the others: the curve looks clean,
but the run is broken. The filter is on by default, so it is a note until there is a nonfinite loss.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.repeats import bad_result, named_results
from halfguard.diagnosis.model.training_setup import TrainingSetup
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find the filter if anything runs in 16 bits, or was requested to."""
    filters = getattr(setup.training_arguments, "logging_nan_inf_filter", False)
    half = any("16" in (name or "") for name in (setup.asked, setup.precision))
    if not filters or not (half or setup.trained_in_half):
        return
    now = setup.forward is not None and bad_result(named_results(setup.forward.result)) is not None
    yield Finding(
        code="HD115",
        severity="warning" if now else "note",
        message="logging_nan_inf_filter is on: a NaN loss will not be in the log.",
        subject="logging_nan_inf_filter",
        why="The Trainer replaces it by the mean of the others, so the curve looks clean.",
        cure="args.logging_nan_inf_filter = False",
    )
