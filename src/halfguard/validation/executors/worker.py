"""A worker: reads orders from standard input, one a line, and carries each out in a process of its own.

Importing torch takes longer than many a small run, so it is done once, and every order gets a copy of the
process as it was then (``fork``): no run finds another's traces. Where copies of a process are not safe,
which is everywhere but on Linux, a worker carries out one order and ends.

A worker lives as long as its parent, which holds the other end of standard input: when that closes, however
the parent went, the worker and everything that it has started are ended.
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
from halfguard.records.files import write_whole
from halfguard.validation.runs.commands import run_command
from halfguard.validation.runs.metrics import NoMetricError
from halfguard.validation.runs.running import run
from halfguard.validation.runs.sources import refuse_changed
from halfguard.validation.runs.speed import measure
from halfguard.validation.runs.task import Task

FORKS = sys.platform == "linux"


class Order(BaseModel):
    """A task, and the files for its answer and for what it prints."""

    task: str
    attempt: int
    answer: str
    log: str


class Answer(BaseModel):
    """A result as JSON, or the mistake that makes every further run pointless."""

    result: str = ""
    mistake: str = ""
    cure: str = ""

    def take(self) -> str:
        """The result; raises the mistake."""
        if self.mistake:
            raise UsageError(self.mistake, cure=self.cure)
        return self.result


def execute(task_json: str, attempt: int) -> str:
    """Carry out a task in this process; task and answer are JSON."""
    task = Task.model_validate_json(task_json)
    if Path(task.folder).is_dir():
        os.chdir(task.folder)
    try:
        refuse_changed(task.job.files)
        if task.against is not None:
            result = measure(task).to_json()
        elif task.job.command is not None:
            result = run_command(task, attempt).to_json()
        else:
            result = run(task, attempt).to_json()
    except NoMetricError as error:
        result = error.run.to_json()  # the study decides what it is
    except UsageError as error:
        return Answer(mistake=error.message, cure=error.cure).model_dump_json()
    return Answer(result=result).model_dump_json()


def serve() -> None:
    """Carry out orders until there are no more; the exit code of each is a line of standard output."""
    if FORKS:
        import torch._dynamo  # noqa: F401, PLC0415 - or the first optimizer step of every copy imports it
    told = os.dup(1)
    while line := sys.stdin.readline():
        order = Order.model_validate_json(line)
        code = _in_a_copy(order) if FORKS else _carry_out(order)
        os.write(told, f"{code}\n".encode())
        if not FORKS:
            return


def _in_a_copy(order: Order) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_carry_out(order))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _carry_out(order: Order) -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Path(order.log).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        write_whole(order.answer, execute(order.task, order.attempt))
    except BaseException:  # noqa: BLE001 - a copy must not go on as if it were the original
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent is gone: it writes nothing while an order is under way
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
