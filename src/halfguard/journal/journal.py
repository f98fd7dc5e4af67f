"""The journal of a run. Its size depends on the number of unusual steps, hardly on the number of steps.

A healthy step updates a few floats and adds its loss to a list. JSON and the disk are used when a group of
healthy steps is full, when a step is unusual, and at the end. No failure of the disk reaches the training
loop.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from halfguard.errors import UsageError
from halfguard.journal.healthy_steps import HealthySteps
from halfguard.journal.jsonl import JsonlWriter
from halfguard.records import (
    HealingRow,
    HealthRow,
    JournalRow,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
    WatchRow,
    write_atomically,
)

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"

logger = logging.getLogger("halfguard")


class Journal:
    """Writes ``run.json`` and ``steps.jsonl`` into ``run_dir``, or with None keeps the latest rows only.

    ``steps_per_row`` is the number of healthy steps that share a row, ``keep`` the number of rows that stay
    in memory for ``recent_rows``. An existing ``steps.jsonl`` is continued, by one process at a time.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        *,
        steps_per_row: int = 1000,
        keep: int = 100,
    ) -> None:
        if steps_per_row < 1 or keep < 1:
            raise UsageError(
                "A journal needs steps_per_row and keep of at least 1, "
                f"not {steps_per_row} and {keep}."
            )
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._steps_per_row = steps_per_row
        self._recent: deque[JournalRow] = deque(maxlen=keep)
        self._healthy = HealthySteps()
        self._file = None if self.run_dir is None else JsonlWriter(self.run_dir / STEPS_FILE)
        # Most loops never call close. This writes the last group when the journal is garbage-collected or
        # the program ends. It refers to the parts: a reference to the journal would keep it alive.
        self._finish = weakref.finalize(self, _finish, self._healthy, self._file, os.getpid())

    @property
    def lost_rows(self) -> int:
        """Number of rows that could not be written to disk."""
        return 0 if self._file is None else self._file.lost

    def write_run_info(self, info: RunInfo) -> None:
        """Write ``run.json``. A resumed run replaces it, so it describes the latest start."""
        if self.run_dir is None or self._file is None or not self._file.working:
            return
        text = info.to_json() + "\n"
        try:
            write_atomically(self.run_dir / RUN_FILE, text)
        except OSError as error:
            # The rows may still be written, and they matter more than this file.
            logger.warning(
                "The journal cannot write %s: %s. Training continues without it.",
                self.run_dir / RUN_FILE,
                error,
            )

    def add_healthy_step(self, step: int, loss: float, grad_norm: float, scale: float) -> None:
        """Add a healthy step; a gap in the step numbers starts a new group."""
        group = self._healthy
        if step != group.next_step:
            self._close_group()
        group.add(step, loss, grad_norm, scale)
        if step - group.first_step + 1 >= self._steps_per_row:
            self._close_group()

    def add_unusual_step(self, row: StepRow) -> None:
        """Write a step in full, after the healthy steps before it."""
        self._close_group()
        self._write(row)

    def add_warning(self, row: HealthRow | HealingRow | NoteRow) -> None:
        """Write a warning, a healing or a note; the open group of healthy steps stays open."""
        self._write(row)

    def add_watched_step(self, row: WatchRow) -> None:
        """Write what a sampled step showed; the open group of healthy steps stays open."""
        self._write(row)

    def add_summary(self, summary: Summary) -> None:
        """Write the counts of an epoch or of the run, and sync to disk."""
        self._close_group()
        self._write(summary)
        self.flush()

    def recent_rows(self, count: int) -> list[JournalRow]:
        """Return the last ``count`` rows (at most ``keep``), oldest first, with the open group."""
        rows = list(self._recent)
        open_group = self._healthy.to_row(with_losses=False)
        if open_group is not None:
            rows.append(open_group)
        return rows[-count:] if count > 0 else []

    def flush(self) -> None:
        """Close the open group and wait for the disk. Call it whenever a checkpoint is taken."""
        self._close_group()
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Write the open group and close the file; later rows stay in memory only."""
        self._close_group()
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _close_group(self) -> None:
        # The rows in memory do without the curve of the loss.
        row = self._healthy.to_row(with_losses=False)
        if row is not None:
            whole = row if self._file is None else self._healthy.to_row()
            self._healthy.clear()
            self._write(row, whole)

    def _write(self, row: JournalRow, on_disk: JournalRow | None = None) -> None:
        text = (
            (on_disk or row).to_json() if self._file is not None else ""
        )  # before anything changes: it may raise
        self._recent.append(row)
        if self._file is not None:
            self._file.append(text)


def _finish(group: HealthySteps, file: JsonlWriter | None, owner: int) -> None:
    # A forked process inherits the open group, but only its parent may write it.
    if file is None or os.getpid() != owner:
        return
    row = group.to_row()
    if row is not None:
        file.append(row.to_json())
    file.close()
