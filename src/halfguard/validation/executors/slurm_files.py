"""The files of runs that were submitted to Slurm: ``KEY.request.json``, ``KEY.reply.json``, ``KEY.JOB.log``.

Job and study exchange nothing else. Both JSON files are written atomically: a reply is complete or absent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.records.atomic_write import write_atomically
from halfguard.validation.executors.worker import TaskReply, TaskRequest
from halfguard.validation.runs.log_tail import last_line
from halfguard.validation.runs.task import Task


class RunFiles:
    """The files of all runs of one study, in one folder that every node shares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Cannot create the folder {str(folder)!r}: {error}.") from error

    def write_request(self, key: str, task: Task, attempt: int) -> Path:
        path, reply = self._path(key, "request"), str(self._path(key, "reply"))
        request = TaskRequest(task=task.model_dump_json(), attempt=attempt, reply=reply)
        write_atomically(path, request.model_dump_json())
        return path

    def requested_attempt(self, key: str) -> int:
        """Return the attempt in the last request."""
        try:
            text = self._path(key, "request").read_bytes()
            return TaskRequest.model_validate_json(text).attempt
        except (OSError, ValueError):
            return 1

    def replied(self) -> set[str]:
        """Return the keys of the runs with a reply."""
        return {path.name.partition(".")[0] for path in self.folder.glob("[!.]*.reply.json")}

    def read_reply(self, key: str) -> TaskReply | None:
        """Return the reply; delete a damaged one and return None, so that the run is repeated."""
        path = self._path(key, "reply")
        try:
            return TaskReply.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            path.unlink(missing_ok=True)
            return None

    def last_log_line(self, key: str, job_id: str) -> str:
        try:
            return last_line(self.folder / f"{key}.{job_id}.log")
        except OSError:
            return (
                f"it left no log in {self.folder}; every node must have this folder under this path"
            )

    def delete(self, key: str) -> None:
        for path in self.folder.glob(f"{key}.*"):
            path.unlink(missing_ok=True)

    def delete_others(self, keys: Collection[str]) -> None:
        """Delete the files of runs that are not in ``keys``."""
        for path in self.folder.glob("[!.]*"):
            if path.name.partition(".")[0] not in keys:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete what killed jobs left half written, and the folder if nothing else is in it."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, key: str, kind: str) -> Path:
        return self.folder / f"{key}.{kind}.json"
