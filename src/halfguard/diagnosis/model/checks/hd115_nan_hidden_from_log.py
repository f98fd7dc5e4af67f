"""HD115: transformers' Trainer leaves NaN out of the log of a 16-bit run.

With ``logging_nan_inf_filter`` a loss that is not finite counts as the mean of the others: the curve is
clean, and the run is corrupt.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.diagnosis.model.subject import Subject
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find the filter where something runs, or is asked to run, in 16 bits."""
    filters = getattr(subject.settings, "logging_nan_inf_filter", False)
    half = any("16" in (name or "") for name in (subject.asked, subject.precision))
    if not filters or not (half or subject.half_trained):
        return
    yield Finding(
        code="HD115",
        message="logging_nan_inf_filter is on: a loss that is NaN will not be in the log.",
        subject="logging_nan_inf_filter",
        why="The Trainer replaces it by the mean of the others, and the curve stays clean.",
        cure="args.logging_nan_inf_filter = False",
    )
