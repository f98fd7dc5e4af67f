"""Rows for tests, and a limit on the size of files that stands in for a full disk."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterable, Iterator

from halfguard.records import Action, Cause, Row, StepRow, Summary, WindowRow


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


def spans(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """First and last step of every row that covers steps."""
    found = []
    for row in rows:
        if isinstance(row, WindowRow):
            found.append((row.first_step, row.last_step))
        elif not isinstance(row, Summary):
            found.append((row.step, row.step))
    return found


def steps(rows: Iterable[Row]) -> list[int]:
    """Every step that the rows cover, in their order."""
    return [step for first, last in spans(rows) for step in range(first, last + 1)]


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Within, no file of this process can grow beyond ``size`` bytes; the write that would raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
