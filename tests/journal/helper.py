"""Rows for tests, and a limit on file sizes that simulates a full disk."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator

from halfguard.records import Action, Cause, HealthyStepsRow, JournalRow, StepRow


def skipped(step: int, note: str = "") -> StepRow:
    return StepRow(
        step=step,
        action=Action.SKIP,
        cause=Cause.GRADIENT_OVERFLOW,
        loss=2.5,
        grad_norm=float("inf"),
        scale=65536.0,
        culprits=("layers.0.weight",),
        note=note,
    )


def spans(rows: Iterable[JournalRow]) -> list[tuple[int, int]]:
    """Return first and last step of every row that covers steps."""
    found = []
    for row in rows:
        if isinstance(row, HealthyStepsRow):
            found.append((row.first_step, row.last_step))
        elif isinstance(row, StepRow):
            found.append((row.step, row.step))
    return found


def steps(rows: Iterable[JournalRow]) -> list[int]:
    """Return every step that the rows cover, in their order."""
    return [step for first, last in spans(rows) for step in range(first, last + 1)]


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Limit files of this process to ``size`` bytes: a write beyond that raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
