"""Runs on this machine, each in a new process, so that no run affects another.

Each run prints to its own log file. If it dies, the last line of that log is part of the failure message.
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

from halfguard.validation.executors import MAX_ATTEMPTS, lost_result, may_start, timed_out_result
from halfguard.validation.executors.worker import TaskReply, TaskRequest
from halfguard.validation.finished_runs import Result, parse_result
from halfguard.validation.runs.commands import describe_exit
from halfguard.validation.runs.task import Task
from halfguard.validation.spec import ExecutorSpec

_POLL = 0.05


def make_executor(spec: ExecutorSpec) -> LocalExecutor:
    """Create the executor of a specification of this kind."""
    return LocalExecutor(spec.workers)


class LocalExecutor:
    """Runs ``workers`` tasks at a time; by default one, which suits a single accelerator."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1

    def run(self, tasks: Sequence[Task], *, deadline: float) -> Generator[tuple[Task, Result]]:
        waiting = deque((task, 1) for task in tasks)
        workers = [_Worker() for _ in range(min(self.workers, len(tasks)))]
        try:
            while time.monotonic() < deadline:
                for worker in workers:
                    running = [other.task for other in workers if other.task is not None]
                    if worker.task is None and waiting and may_start(waiting[0][0], running):
                        worker.start(*waiting.popleft())
                if all(worker.task is None for worker in workers):
                    return
                ended = False
                for found in _collect(workers, waiting):
                    ended = True
                    yield found
                if not ended:
                    time.sleep(_POLL)
            yield from _collect(workers, waiting)
            for worker in workers:
                if worker.task is not None:
                    yield worker.task, timed_out_result(worker.task, worker.attempt, worker.state)
            for task, attempt in waiting:
                if attempt > 1:
                    yield task, timed_out_result(task, attempt - 1, "its worker had died")
        finally:
            for worker in workers:
                worker.stop()


def _collect(
    workers: Sequence[_Worker], waiting: deque[tuple[Task, int]]
) -> Iterator[tuple[Task, Result]]:
    """Yield tasks that have ended; put a task whose worker died back to the front of ``waiting``."""
    for worker in workers:
        if worker.task is None or not worker.has_ended():
            continue
        task, attempt, result = worker.take_result()
        if result is not None:
            yield task, result
        elif attempt < MAX_ATTEMPTS:
            waiting.appendleft((task, attempt + 1))
        else:
            yield task, lost_result(task, worker.exit_text)


class _Worker:
    """A process that runs one task after another; it is started when first needed."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.exit_text = ""
        self.attempt, self._started, self._code = 0, 0.0, ""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="halfguard-")
        files = (Path(self._folder.name) / name for name in ("reply", "log", "errors"))
        self._reply, self._log, self._errors = files

    def start(self, task: Task, attempt: int) -> None:
        for file in (self._reply, self._log):
            file.unlink(missing_ok=True)
        self.task, self.attempt, self._started = task, attempt, time.monotonic()
        request = TaskRequest(
            task=task.model_dump_json(),
            attempt=attempt,
            reply=str(self._reply),
            log=str(self._log),
        )
        stdin = self._running_process().stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        # If the worker has just died, has_ended() finds that its output is closed.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(request.model_dump_json().encode() + b"\n")
            stdin.flush()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            with self._errors.open("wb") as errors:
                # In its own session, so that stop() also kills the processes that it started.
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
        """The running time of the task as text."""
        return f"it had been running for {time.monotonic() - self._started:.0f} s"

    def has_ended(self) -> bool:
        """Return whether the task has ended, with or without a result."""
        assert self._process is not None  # noqa: S101 - it was started
        out = self._process.stdout
        assert out is not None  # noqa: S101 - it is a pipe
        if not select.select([out], [], [], 0)[0]:
            return False
        self._code = out.readline().decode().strip()  # empty if the worker itself has died
        return True

    def take_result(self) -> tuple[Task, int, Result | None]:
        """Return the task, its attempt and its result, which is None if the process died."""
        task, self.task = self.task, None
        assert task is not None  # noqa: S101 - it was started
        if self._reply.is_file():
            reply = TaskReply.model_validate_json(self._reply.read_bytes())
            return task, self.attempt, parse_result(task, reply.result_or_raise())
        code = int(self._code or -signal.SIGKILL)
        self.exit_text = describe_exit(code, self._log if self._log.is_file() else self._errors)
        return task, self.attempt, None

    def stop(self) -> None:
        """Kill the process and everything that it started, and delete its files."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process.wait()
        self._folder.cleanup()
