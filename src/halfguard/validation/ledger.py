"""The folder of a study: every finished run is one file, and that is all the state there is.

A file appears whole when its run has finished and never changes. So a study that was killed at any moment
goes on by looking which files are there; nothing is repaired or replayed. One process at a time works on a
folder: two would make every run twice, and each would judge what only it has seen. The lock is the
system's, so that it ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfguard.errors import HalfguardError, RecordError, UsageError
from halfguard.records.files import write_whole
from halfguard.records.study import RunResult, Speed, Study
from halfguard.validation.runs.task import Task

Result = RunResult | Speed


def parse(task: Task, text: str) -> Result:
    """A result of ``task`` from its JSON."""
    return RunResult.from_json(text) if task.against is None else Speed.from_json(text)


class Ledger:
    """Results by the task that they belong to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.results = self.folder / "runs"
        try:
            self.results.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"The folder {str(self.folder)!r} cannot be made: {error}.") from error

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Keep the folder to this process, or raise and name the one that has it."""
        path = self.folder / ".lock"
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}.") from error
        with file:
            self._lock(file.fileno(), path)
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield

    def _lock(self, descriptor: int, path: Path) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"The study in {self.folder} is being run by another process, "
                f"{path.read_text('utf-8') or 'which has just begun'}.",
                cure="Wait until it has ended, or give this one a folder of its own: --out FOLDER.",
            ) from error
        except OSError:
            return  # a file system that knows no locks; there, it is the user who keeps them apart

    def find(self, task: Task) -> Result | None:
        """What was recorded for ``task``; None if it has to be run, or run again."""
        try:
            return parse(task, self._path(task).read_text("utf-8"))
        except (FileNotFoundError, RecordError, UnicodeDecodeError):
            return None  # a file that something else has damaged is worth a new run, not an end

    def record(self, task: Task, result: Result) -> None:
        """Keep a result for good."""
        self._write(self._path(task), result.to_json())

    def forget(self, task: Task) -> None:
        """Have ``task`` run again."""
        self._path(task).unlink(missing_ok=True)

    def save(self, study: Study) -> Path:
        """Write the whole study beside its runs."""
        path = self.folder / "study.json"
        self._write(path, study.to_json())
        return path

    def _write(self, path: Path, text: str) -> None:
        try:
            write_whole(path, text)
        except OSError as error:
            raise HalfguardError(
                f"{path} cannot be written: {error}.",
                cure="Make room for it and start the same command again: every run that is there is kept.",
            ) from error

    def _path(self, task: Task) -> Path:
        return self.results / f"{task.key}.json"
