"""One run of a script that cannot be imported: a command template, and the metrics that it writes.

The script gets the precision, the seed and a path, and writes one JSON object of metrics to that path. It
runs unchanged and without a shell, so names and paths are never interpreted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from halfguard.errors import UsageError
from halfguard.journal.run_environment import collect_environment
from halfguard.records.study import RunResult
from halfguard.validation.runs.metrics import numeric_values, require_metric
from halfguard.validation.runs.task import Task

_LAUNCHER = Path(__file__).with_name("launcher.py")
_MAX_CHARACTERS = 300  # in a failure message


def run_command(task: Task, attempt: int = 1) -> RunResult:
    """Run the script to its end and return its result."""
    assert task.job.command is not None  # noqa: S101
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="halfguard-") as folder:
        out, errors = Path(folder) / "metrics.json", Path(folder) / "errors"
        code, peak = _launch(_arguments(task, out), task.folder, errors)
        failure = f"the command ended with {describe_exit(code, errors)}" if code else None
        metrics, problem = _read_metrics(out) if failure is None else ({}, "")
    result = RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics=metrics,
        steps=0,
        peak_bytes=peak,
        duration=time.perf_counter() - started,
        failure=failure,
        attempt=attempt,
        environment=collect_environment(),
    )
    return require_metric(result, task.job.metric, problem)


def _arguments(task: Task, out: Path) -> list[str]:
    values = {"{precision}": task.setting.precision, "{seed}": str(task.seed), "{out}": str(out)}

    def fill(argument: str) -> str:
        for placeholder, value in values.items():  # not str.format: other braces are the script's
            argument = argument.replace(placeholder, value)
        return argument

    return [fill(argument) for argument in task.job.command or ()]


def _launch(command: list[str], folder: str, errors: Path) -> tuple[int, int | None]:
    """Run the command and return its exit code and peak memory; None if its launcher was killed with it.

    It stays in the process group of this worker, which is killed as a whole.
    """
    read, write = os.pipe()
    with open(read, "rb") as report, errors.open("wb") as file:  # noqa: PTH123 - a descriptor
        try:
            launcher = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                [sys.executable, "-I", "-S", str(_LAUNCHER), str(write), *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stderr=file,
                pass_fds=[write],
            )
        except (OSError, ValueError) as error:  # a long argument, a NUL in one, or no such folder
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise _start_error(command, folder, why) from error
        finally:
            os.close(write)
        fields = report.read().split()
    code = launcher.wait()
    if fields[:1] == [b"error"]:
        raise _start_error(command, folder, os.strerror(int(fields[1])))
    return (int(fields[0]), int(fields[1])) if fields else (code, None)


def _start_error(command: list[str], folder: str, why: str) -> UsageError:
    return UsageError(
        f"command: {command[0][:200]!r} cannot be started: {why}.",
        cure=(
            "Install it, or specify its path relative to the folder of the specification, "
            f"{folder}."
        ),
    )


def _read_metrics(out: Path) -> tuple[dict[str, float], str]:
    """Return the metrics, and the reason if there are none."""
    try:
        body: Any = json.loads(out.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"the command succeeded but wrote no JSON to {{out}} ({error})"
    return numeric_values(body) if isinstance(body, dict) else {}, ""


def describe_exit(code: int, log: Path) -> str:
    """Return the signal or exit code, and the last line of ``log`` if there is one."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    line = last_line(log)
    return f"{how}: {line}" if line else how


def last_line(log: Path) -> str:
    """Return the last line that is not empty: in a traceback, the error itself."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        # A character has at most four bytes.
        file.seek(max(0, file.tell() - 4 * _MAX_CHARACTERS))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-_MAX_CHARACTERS:] if lines else ""
