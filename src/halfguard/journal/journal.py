"""The record of a run as it happens: it grows with windows and unusual steps, never with steps.

One idea: a healthy step touches a handful of floats. JSON and the disk come in only when a window of
them is full, when something unusual happens, and at the end. And the journal is a witness, not a part
of the run: no failure of the disk reaches the training loop.
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
from halfguard.journal.lines import Lines
from halfguard.journal.window import Window
from halfguard.records import Row, RunInfo, StepRow, Summary, write_whole

RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"

logger = logging.getLogger("halfguard")


class Journal:
    """Writes ``run.json`` and ``steps.jsonl`` into ``run_dir``, or with None keeps the latest rows only.

    ``window`` is the number of healthy steps that share a row, ``keep`` the number of rows that stay
    in memory for ``recent``. An existing ``steps.jsonl`` is continued. One process writes a folder.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        *,
        window: int = 1000,
        keep: int = 100,
    ) -> None:
        if window < 1 or keep < 1:
            raise UsageError(
                f"A journal needs a window and a memory of at least 1, not {window} and {keep}."
            )
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._size = window
        self._recent: deque[Row] = deque(maxlen=keep)
        self._window = Window()
        self._lines = None if self.run_dir is None else Lines(self.run_dir / STEPS_FILE)
        # Most loops never close anything. This writes their last window when the journal is dropped
        # or the program ends; it holds the parts, not the journal, which it would keep alive.
        self._finish = weakref.finalize(self, _finish, self._window, self._lines, os.getpid())

    @property
    def lost(self) -> int:
        """Rows that were meant for the disk and did not get there."""
        return 0 if self._lines is None else self._lines.lost

    def begin(self, info: RunInfo) -> None:
        """Write ``run.json``; a resumed run replaces it, so it describes the latest start."""
        if self.run_dir is None or self._lines is None or not self._lines.working:
            return
        text = info.to_json() + "\n"
        try:
            write_whole(self.run_dir / RUN_FILE, text)
        except OSError as error:
            # The rows may still succeed, and are worth more than what they belong to.
            logger.warning(
                "The journal cannot write %s: %s. Training goes on without it.",
                self.run_dir / RUN_FILE,
                error,
            )

    def healthy(self, step: int, loss: float, grad_norm: float, scale: float) -> None:
        """Note an ordinary step; a number that does not follow the last one opens a new window."""
        window = self._window
        if step != window.next_step:
            self._close_window()
        window.add(step, loss, grad_norm, scale)
        if step - window.first_step + 1 >= self._size:
            self._close_window()

    def unusual(self, row: StepRow) -> None:
        """Write a step in full, after the healthy ones before it."""
        self._close_window()
        self._write(row)

    def summary(self, summary: Summary) -> None:
        """Write the counts of an epoch or of the run, and bring everything to the disk."""
        self._close_window()
        self._write(summary)
        self.flush()

    def recent(self, count: int) -> list[Row]:
        """The last ``count`` rows (at most ``keep``), oldest first, the open window included."""
        rows = list(self._recent)
        open_window = self._window.row()
        if open_window is not None:
            rows.append(open_window)
        return rows[-count:] if count > 0 else []

    def flush(self) -> None:
        """Close the open window and wait for the disk; call it whenever a checkpoint is taken."""
        self._close_window()
        if self._lines is not None:
            self._lines.sync()

    def close(self) -> None:
        """Write what is open and let go of the file; what comes later stays in memory."""
        self._close_window()
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

    def _close_window(self) -> None:
        row = self._window.row()
        if row is not None:
            self._window.clear()
            self._write(row)

    def _write(self, row: Row) -> None:
        self._recent.append(row)
        if self._lines is not None:
            self._lines.append(row.to_json())


def _finish(window: Window, lines: Lines | None, owner: int) -> None:
    # A forked process inherits the open window, but the steps in it are its parent's to write.
    if lines is None or os.getpid() != owner:
        return
    row = window.row()
    if row is not None:
        lines.append(row.to_json())
    lines.close()
