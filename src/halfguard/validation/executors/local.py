"""Runs as processes on this machine, a new one for every run, so that none finds another's traces.

What a run prints goes to a file of its own; when it dies, the last of that is in the reason.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from halfguard.validation.executors import ATTEMPTS, cut_off, lost, may_begin
from halfguard.validation.executors.worker import Answer, Order
from halfguard.validation.ledger import Result, parse
from halfguard.validation.runs.last_words import last_words
from halfguard.validation.runs.task import Task

_POLL = 0.05


class LocalExecutor:
    """``workers`` runs at a time; one, unless told otherwise, as befits one accelerator."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        """See ``Executor``."""
        waiting = deque((task, 1) for task in tasks)
        workers = [_Worker() for _ in range(min(self.workers, len(tasks)))]
        try:
            while time.monotonic() < deadline:
                for worker in workers:
                    beside = [other.task for other in workers if other.task is not None]
                    if worker.task is None and waiting and may_begin(waiting[0][0], beside):
                        worker.begin(*waiting.popleft())
                if all(worker.task is None for worker in workers):
                    return
                ended = False
                for found in _ended(workers, waiting):
                    ended = True
                    yield found
                if not ended:
                    time.sleep(_POLL)
            yield from _ended(workers, waiting)
            for worker in workers:
                if worker.task is not None:
                    yield worker.task, cut_off(worker.task, worker.attempt, worker.state)
            for task, attempt in waiting:
                if attempt > 1:
                    yield task, cut_off(task, attempt - 1, "its worker had died")
        finally:
            for worker in workers:
                worker.stop()


def _ended(
    workers: Sequence[_Worker], waiting: deque[tuple[Task, int]]
) -> Iterator[tuple[Task, Result]]:
    """What has just ended; a task whose worker died goes back to the front of those that wait."""
    for worker in workers:
        if worker.task is None or not worker.ended():
            continue
        task, attempt, result = worker.finish()
        if result is not None:
            yield task, result
        elif attempt < ATTEMPTS:
            waiting.appendleft((task, attempt + 1))
        else:
            yield task, lost(task, worker.last_words)


class _Worker:
    """A process that carries out one order after another; started when it is needed."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.last_words = ""
        self.attempt, self._begun, self._code = 0, 0.0, ""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="halfguard-")
        files = (Path(self._folder.name) / name for name in ("answer", "log", "errors"))
        self._answer, self._log, self._errors = files

    def begin(self, task: Task, attempt: int) -> None:
        """Order a task."""
        for file in (self._answer, self._log):
            file.unlink(missing_ok=True)
        self.task, self.attempt, self._begun = task, attempt, time.monotonic()
        order = Order(
            task=task.model_dump_json(),
            attempt=attempt,
            answer=str(self._answer),
            log=str(self._log),
        )
        stdin = self._running().stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        with contextlib.suppress(BrokenPipeError):  # it has just died, as its other pipe will tell
            stdin.write(order.model_dump_json().encode() + b"\n")
            stdin.flush()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            with self._errors.open("wb") as errors:
                # In a session of its own: it is stopped together with whatever it has started.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "halfguard.validation.executors.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
        return self._process

    @property
    def state(self) -> str:
        """For how long the task has been under way."""
        return f"it was under way for {time.monotonic() - self._begun:.0f} s"

    def ended(self) -> bool:
        """Whether the task is over, well or not."""
        assert self._process is not None  # noqa: S101 - it was begun
        out = self._process.stdout
        assert out is not None  # noqa: S101 - it is a pipe
        if not select.select([out], [], [], 0)[0]:
            return False
        self._code = out.readline().decode().strip()  # empty if the worker itself is gone
        return True

    def finish(self) -> tuple[Task, int, Result | None]:
        """The task, which attempt it was, and its result; None if the process died before."""
        task, self.task = self.task, None
        assert task is not None  # noqa: S101 - it was begun
        if self._answer.is_file():
            answer = Answer.model_validate_json(self._answer.read_bytes())
            return task, self.attempt, parse(task, answer.take())
        code = int(self._code or -signal.SIGKILL)
        log = self._log if self._log.is_file() else self._errors
        said = last_words(log)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.last_words = f"{how}{': ' if said else ''}{said}"
        return task, self.attempt, None

    def stop(self) -> None:
        """End it and everything that it has started, and remove its files."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait()
        self._folder.cleanup()
