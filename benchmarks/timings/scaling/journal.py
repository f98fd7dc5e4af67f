"""A journal of many steps: the time of the training loop, bytes on disk, and the time of a report."""

from __future__ import annotations

import math
import tempfile
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.timings.scaling.rows import Row, Table, timed
from halfguard.journal import Journal
from halfguard.journal.run_folder import read_run
from halfguard.records import Action, Cause, StepRow
from halfguard.report.html import to_html
from halfguard.report.run import run_page

UNUSUAL = 1000  # one step of so many is skipped


def _write(folder: Path, steps: int) -> None:
    with closing(Journal(folder)) as journal:
        for step in range(steps):
            if step % UNUSUAL == UNUSUAL - 1:
                journal.add_unusual_step(_skipped(step))
            else:
                journal.add_healthy_step(step, 2.0 + 1e-3 * (step % 97), 1.0, 65536.0)


def _skipped(step: int) -> StepRow:
    return StepRow(
        step=step,
        epoch=0,
        batch=step,
        action=Action.SKIP,
        cause=Cause.GRADIENT_OVERFLOW,
        loss=2.0,
        grad_norm=math.inf,
        scale=65536.0,
        culprits=("blocks.11.attention.query.weight", "blocks.11.attention.key.weight"),
    )


def _row(steps: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write, _ = timed(lambda: _write(path, steps))
        size = (path / "steps.jsonl").stat().st_size
        read, report = timed(lambda: read_run(path))
        page, html = timed(lambda: to_html(run_page(report)))
        tracemalloc.start()
        read_run(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {
        "steps": steps,
        "unusual": steps // UNUSUAL,
        "write, µs per step": 1e6 * write / steps,
        "MB on disk": size / 1e6,
        "read, s": read,
        "page, s": page,
        "page, MB": len(html) / 1e6,
        "memory to read, MB": peak / 1e6,
    }


def tables(counts: Sequence[int] = (100_000, 1_000_000, 10_000_000)) -> list[Table]:
    return [Table("A journal, one step of 1,000 unusual", [_row(steps) for steps in counts])]
