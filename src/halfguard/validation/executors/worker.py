"""A worker process: reads task requests from standard input, one per line, and runs each in its own process.

Importing torch takes longer than many small runs. So it is imported once, and every task runs in a fork of
the process in that state: no run affects another. Forking is safe on Linux only. On other systems a worker
runs one task and exits.

A worker exits with its parent, which holds the other end of standard input. When that closes, for any reason,
the worker and all processes that it started are killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from pydantic import BaseModel

from halfguard.errors import UsageError
from halfguard.records.atomic_write import write_atomically
from halfguard.validation.runs.commands import run_command
from halfguard.validation.runs.metrics import NoMetricError
from halfguard.validation.runs.running import run
from halfguard.validation.runs.sources import raise_if_changed
from halfguard.validation.runs.stepping import measure_speed
from halfguard.validation.runs.task import Task

FORKS = sys.platform == "linux"


class TaskRequest(BaseModel):
    """A task, and the paths of the files for its reply and its output."""

    task: str
    attempt: int
    reply: str
    log: str


class TaskReply(BaseModel):
    """A result as JSON, or a usage error that every further run would repeat."""

    result: str = ""
    error: str = ""
    cure: str = ""

    def result_or_raise(self) -> str:
        if self.error:
            raise UsageError(self.error, cure=self.cure)
        return self.result


def execute(task_json: str, attempt: int) -> str:
    """Run a task in this process; the task and the returned ``TaskReply`` are JSON."""
    task = Task.model_validate_json(task_json)
    if Path(task.folder).is_dir():
        os.chdir(task.folder)
    try:
        raise_if_changed(task.job.files)
        if task.against is not None:
            result = measure_speed(task).to_json()
        elif task.job.command is not None:
            result = run_command(task, attempt).to_json()
        else:
            result = run(task, attempt).to_json()
    except NoMetricError as error:
        result = error.run.to_json()  # the study decides whether it is an error
    except UsageError as error:
        return TaskReply(error=error.message, cure=error.cure).model_dump_json()
    return TaskReply(result=result).model_dump_json()


def serve() -> None:
    """Run tasks until standard input ends; write the exit code of each as a line to standard output."""
    if FORKS:
        import torch._dynamo  # noqa: F401, PLC0415 - else the first optimizer step in every fork imports it
    stdout = os.dup(1)
    while line := sys.stdin.readline():
        request = TaskRequest.model_validate_json(line)
        code = _run_in_fork(request) if FORKS else _run_task(request)
        os.write(stdout, f"{code}\n".encode())
        if not FORKS:
            return


def _run_in_fork(request: TaskRequest) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_run_task(request))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run_task(request: TaskRequest) -> int:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with Path(request.log).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        write_atomically(request.reply, execute(request.task, request.attempt))
    except BaseException:  # noqa: BLE001 - a fork must not continue as if it were its parent
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _exit_with_parent() -> None:
    os.read(0, 1)  # returns when the parent has exited: it writes nothing while a task is running
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
