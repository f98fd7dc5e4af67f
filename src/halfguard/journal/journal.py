"""The journal of a run. Its size depends on the number of unusual steps, hardly on the number of steps.

A healthy step updates a few floats and adds its loss to a list. JSON and the disk are used when a group of
healthy steps is full, when a step is unusual, and at the end. No failure of the disk reaches the training
loop.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from halfguard.journal.jsonl import JsonlWriter
from halfguard.records import (
    HealingRow,
    HealthRow,
    HealthyStepsRow,
    JournalRow,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
    WatchRow,
    write_atomically,
)
from halfguard.records.step import LossCurve

# A group that begins before this step has a point in the curve of the loss for so many steps. A long run
# is drawn with fewer points than that, so its journal stays small.
_STEPS_PER_POINT = ((2_000, 1), (20_000, 50))
_STEPS_PER_LATE_POINT = 500


class HealthySteps:
    """The healthy steps since the last row; only ``next_step`` may be added."""

    __slots__ = ("first_step", "grad_norm_max", "grad_norm_min", "losses", "next_step", "scale")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all steps; the next one may have any number."""
        # No step is negative: first = next = -1 means "empty" and never matches a step.
        self.first_step = self.next_step = -1
        self.losses = array("d")  # 8 bytes a step
        self.grad_norm_min = float("inf")
        self.grad_norm_max = float("-inf")
        self.scale = 1.0

    def __len__(self) -> int:
        return self.next_step - self.first_step

    def add(self, step: int, loss: float, grad_norm: float, scale: float) -> None:
        """Add a step; its number is ``next_step``, unless the group is empty."""
        if self.first_step < 0:
            self.first_step = step
        self.next_step = step + 1
        self.losses.append(loss)
        # This runs at every step: a comparison costs half as much as a call of min or max.
        if grad_norm < self.grad_norm_min:  # noqa: PLR1730
            self.grad_norm_min = grad_norm
        if grad_norm > self.grad_norm_max:  # noqa: PLR1730
            self.grad_norm_max = grad_norm
        self.scale = scale

    def to_row(self, *, with_losses: bool = True) -> HealthyStepsRow | None:
        """Return the steps so far as a row; None if there are none."""
        if not len(self):
            return None
        return HealthyStepsRow(
            first_step=self.first_step,
            last_step=self.next_step - 1,
            loss_mean=sum(self.losses) / len(self),
            loss_max=max(self.losses),
            grad_norm_min=self.grad_norm_min,
            grad_norm_max=self.grad_norm_max,
            scale=self.scale,
            losses=self._loss_curve() if with_losses else None,
        )

    def _loss_curve(self) -> LossCurve | None:
        if len(self) < 2 or not all(map(math.isfinite, self.losses)):
            return None  # the mean describes one step; some frameworks do not tell their losses
        sizes = (size for end, size in _STEPS_PER_POINT if self.first_step < end)
        size = next(sizes, _STEPS_PER_LATE_POINT)
        if size == 1:
            return LossCurve(steps_per_point=1, mean=_round(self.losses))
        points = [self.losses[start : start + size] for start in range(0, len(self), size)]
        return LossCurve(
            steps_per_point=size,
            mean=_round([sum(point) / len(point) for point in points]),
            low=_round([min(point) for point in points]),
            high=_round([max(point) for point in points]),
        )


def _round(values: Sequence[float]) -> tuple[float, ...]:
    """Return values with six digits: a drawing shows no more, and the file is half as large."""
    return tuple(float(f"{value:.6g}") for value in values)


RUN_FILE = "run.json"
STEPS_FILE = "steps.jsonl"

logger = logging.getLogger("halfguard")
_latest: weakref.WeakValueDictionary[Path, Journal] = weakref.WeakValueDictionary()  # of each file


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
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._steps_per_row = steps_per_row
        self._recent: deque[JournalRow] = deque(maxlen=keep)
        self._healthy = HealthySteps()
        self._file = None if self.run_dir is None else JsonlWriter(self.run_dir / STEPS_FILE)
        self._is_shared = False  # with a journal of this process that was opened later
        if self._file is not None:
            _latest[self._file.path.resolve()] = self
        # Most loops never call close. This writes the last group when the journal is garbage-collected or
        # the program ends. It refers to the parts: a reference to the journal would keep it alive.
        self._finish = weakref.finalize(self, _finish, self._healthy, self._file, os.getpid())

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

    def add_row(self, row: HealthRow | HealingRow | NoteRow | WatchRow) -> None:
        """Write a warning, a healing, a note or a sampled step; the open group of steps stays open."""
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
            self._warn_if_shared(self._file.path)

    def _warn_if_shared(self, path: Path) -> None:
        if not self._is_shared and _latest.get(path.resolve(), self) is not self:
            self._is_shared = True
            logger.warning(
                "%s: two guards in this process write to this folder, so reports mix their steps. "
                "Use a separate run_dir for each guard.",
                path.parent,
            )


def _finish(group: HealthySteps, file: JsonlWriter | None, owner: int) -> None:
    # A forked process inherits the open group, but only its parent may write it.
    if file is None or os.getpid() != owner:
        return
    row = group.to_row()
    if row is not None:
        file.append(row.to_json())
    file.close()
