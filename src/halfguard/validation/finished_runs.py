"""The folder of a study: every finished run is one file, and there is no other state.

A file is written atomically when its run has finished, and never changes. So a study that was killed at any
moment resumes with the runs that have no file; nothing is repaired. Only one process at a time may work in a
folder: two would do every run twice, and each would judge only its own results. The operating system holds
the lock, so it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfguard.errors import HalfguardError, RecordError, UsageError
from halfguard.records.atomic_write import write_atomically
from halfguard.records.study import RunResult, Speed, Study
from halfguard.validation.runs.task import Task

Result = RunResult | Speed


def parse_result(task: Task, text: str) -> Result:
    """Read a result of ``task`` from JSON."""
    return RunResult.from_json(text) if task.against is None else Speed.from_json(text)


class FinishedRuns:
    """The results of a study on disk, one file per task."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.results = self.folder / "runs"
        try:
            self.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Cannot create the folder {str(self.folder)!r}: {error}.") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process; raise and name the process that already holds the lock."""
        path = self.folder / ".lock"
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error}.") from error
        with file:
            self._acquire(file.fileno(), path)
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def _acquire(self, descriptor: int, path: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"The study in {self.folder} is already being run by another process, "
                f"{path.read_text('utf-8') or 'which has just started'}.",
                cure="Wait until it has finished, or use another folder for this study: -o FOLDER.",
            ) from error
        except OSError:
            return  # a file system without locks: the user must keep processes apart

    def find(self, task: Task) -> Result | None:
        """Return the result of ``task``, or None if it has to be run."""
        try:
            return parse_result(task, self._path(task).read_text("utf-8"))
        except (FileNotFoundError, RecordError, UnicodeDecodeError):
            return None  # a damaged file does not stop the study: the run is repeated

    def add(self, task: Task, result: Result) -> None:
        self._write(self._path(task), result.to_json())

    def remove(self, task: Task) -> None:
        """Delete the result of ``task``, so that it is run again."""
        self._path(task).unlink(missing_ok=True)

    def save(self, study: Study) -> Path:
        """Write the study to ``study.json``, beside its runs."""
        path = self.folder / "study.json"
        self._write(path, study.to_json())
        return path

    def _write(self, path: Path, text: str) -> None:
        try:
            write_atomically(path, text)
        except OSError as error:
            raise HalfguardError(
                f"Cannot write {path}: {error}.",
                cure="Free some disk space and start the same command again: all finished runs are kept.",
            ) from error

    def _path(self, task: Task) -> Path:
        return self.results / f"{task.key}.json"
