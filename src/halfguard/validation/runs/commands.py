"""One run of a script that cannot be imported: a command template, and the metrics that it writes.

The script is told the precision, the seed and a path; at the path it leaves one JSON object of metrics. It
runs unchanged and without a shell, so nothing in a name or a path is ever interpreted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from halfguard.errors import UsageError
from halfguard.journal.run_environment import environment
from halfguard.records.study import RunResult
from halfguard.validation.runs.last_words import last_words
from halfguard.validation.runs.metrics import numbers_in, required
from halfguard.validation.runs.task import Task

_LAUNCHER = Path(__file__).with_name("launcher.py")


def run_command(task: Task, attempt: int = 1) -> RunResult:
    """Start the script and wait for it."""
    assert task.job.command is not None  # noqa: S101
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="halfguard-") as folder:
        out, errors = Path(folder) / "metrics.json", Path(folder) / "errors"
        ended = _start(_words(task, out), task.folder, errors)
        failure = _failure(ended.code, errors)
        metrics, flaw = _read(out) if failure is None else ({}, "")
    result = RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics=metrics,
        steps=0,
        peak_bytes=ended.peak,
        duration=time.perf_counter() - started,
        failure=failure,
        attempt=attempt,
        environment=environment(),
    )
    return required(result, task.job.metric, flaw)


def _words(task: Task, out: Path) -> list[str]:
    values = {"{precision}": task.setting.precision, "{seed}": str(task.seed), "{out}": str(out)}

    def filled(word: str) -> str:
        for placeholder, value in values.items():  # not str.format: other braces are the script's
            word = word.replace(placeholder, value)
        return word

    return [filled(word) for word in task.job.command or ()]


class _Ended(NamedTuple):
    """How a command ended."""

    code: int
    peak: int | None  # None if its launcher was killed with it


def _start(words: list[str], folder: str, errors: Path) -> _Ended:
    """Run the command through the launcher, in the group of this process, which is killed as a whole."""
    read, write = os.pipe()
    with open(read, "rb") as report, errors.open("wb") as file:  # noqa: PTH123 - a descriptor
        try:
            launcher = subprocess.Popen(  # noqa: S603 - the user's own command, as words and without a shell
                [sys.executable, "-I", "-S", str(_LAUNCHER), str(write), *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stderr=file,
                pass_fds=[write],
            )
        except (OSError, ValueError) as error:  # a word too long or with a NUL, or no such folder
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            raise _unstartable(words, folder, why) from error
        finally:
            os.close(write)
        told = report.read().split()
    code = launcher.wait()
    if told[:1] == [b"error"]:
        raise _unstartable(words, folder, os.strerror(int(told[1])))
    return _Ended(int(told[0]), int(told[1])) if told else _Ended(code, None)


def _unstartable(words: list[str], folder: str, why: str) -> UsageError:
    return UsageError(
        f"command: {words[0][:200]!r} cannot be started: {why}.",
        cure=f"It is looked up from the folder of the specification, {folder}.",
    )


def _failure(code: int, errors: Path) -> str | None:
    """Why it failed, or None."""
    if code == 0:
        return None
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = last_words(errors)
    return f"the command ended with {how}{': ' if said else ''}{said}"


def _read(out: Path) -> tuple[dict[str, float], str]:
    """The metrics, and why there are none."""
    try:
        body: Any = json.loads(out.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"the command ended well but left no JSON at {{out}} ({error})"
    return numbers_in(body) if isinstance(body, dict) else {}, ""
