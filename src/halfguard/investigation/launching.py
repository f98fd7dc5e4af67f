"""Start the process of one pass, follow it, and read its answer.

A process that is forked from this one need not import torch again, which takes seconds. It is forked only
where that is safe: on Linux, without an accelerator, and if the script does not set variables that torch
reads when it is imported. The process has a session of its own, so that Ctrl-C reaches this one alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from halfguard.investigation.passes import PassPlan, PassResult, read_result

_POLL = 0.02  # seconds
_REPORT = 0.5
Watch = Callable[[PassResult, float], None]  # progress, and the seconds since the start
# A rerun must not reach a tracker's server, and hashes must be the same in each pass.
_ENVIRONMENT = {"WANDB_MODE": "offline", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class _Process(Protocol):
    pid: int

    def poll(self) -> int | None: ...


@dataclass
class _Forked:
    """A forked process, with the interface of ``subprocess.Popen``."""

    pid: int

    def poll(self) -> int | None:
        done, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None


def can_fork(source: Path | None) -> bool:
    """Return whether passes of this script may be forked from this process."""
    if sys.platform != "linux" or threading.active_count() > 1 or Path("/dev/nvidiactl").exists():
        return False
    try:
        return source is not None and b"environ" not in source.read_bytes()
    except OSError:
        return False


def launch(
    plan: PassPlan,
    log: Path,
    watch: Watch,
    *,
    fork: bool,
    variables: Mapping[str, str],
    is_over: Callable[[], bool],
) -> PassResult:
    """Run one pass, until it ends or ``is_over()``; Ctrl-C ends it, and returns what was known by then."""
    answer, progress = Path(plan.answer), Path(f"{plan.answer}.progress")
    for path in (answer, progress):
        path.unlink(missing_ok=True)
    variables = {**_ENVIRONMENT, **os.environ, **variables}
    process = _fork(plan, log, variables) if fork else _start(plan, log, variables)
    started = time.monotonic()
    ended = False
    try:
        ended = _follow(process, answer, started, watch, is_over)
    except KeyboardInterrupt:
        pass
    finally:
        _end_session(process)
    found = read_result(answer)
    if found is None:
        found = read_result(progress) or PassResult()
        found = found.model_copy(update={"ended": "died" if ended else "interrupted"})
    return found if ended else found.model_copy(update={"ended": "interrupted"})


def _follow(
    process: _Process, answer: Path, started: float, watch: Watch, is_over: Callable[[], bool]
) -> bool:
    """Wait for the process; return whether it ended by itself."""
    due = 0.0
    while process.poll() is None:
        now = time.monotonic()
        if now >= due:
            due = now + _REPORT
            watch(read_result(Path(f"{answer}.progress")) or PassResult(), now - started)
            if is_over():
                return False
        time.sleep(_POLL)
    return True


def _end_session(process: _Process) -> None:
    """End what the process has left behind: loader workers, held copies."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    until = time.monotonic() + 5
    with suppress(ChildProcessError):
        while process.poll() is None and time.monotonic() < until:
            time.sleep(_POLL)


def _start(plan: PassPlan, log: Path, variables: Mapping[str, str]) -> _Process:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "halfguard.investigation.one_pass"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=variables,
            start_new_session=True,
        )
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.write(plan.model_dump_json().encode())
    process.stdin.close()
    return process


def _fork(plan: PassPlan, log: Path, variables: Mapping[str, str]) -> _Process:
    # The first optimizer of a process imports it, which takes seconds: once here, not in each pass.
    import torch._dynamo  # noqa: F401, PLC0415

    from halfguard.investigation.one_pass import run_pass  # noqa: PLC0415 - it imports torch

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        return _Forked(pid)
    try:
        os.setsid()
        os.environ.update(variables)
        with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_pass(plan)
    finally:
        os._exit(70)
