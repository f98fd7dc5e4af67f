"""One run of a script that cannot be imported: a command template, and the metrics that it writes.

The script is told the precision, the seed and a path; at the path it leaves one JSON object of metrics. It
runs unchanged and without a shell, so nothing in a name or a path is ever interpreted.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from halfguard.errors import UsageError
from halfguard.journal.environment import environment
from halfguard.records.study import RunResult
from halfguard.validate.runs.last_words import last_words
from halfguard.validate.runs.task import Task


def run_command(task: Task, attempt: int = 1) -> RunResult:
    """Start the script and wait for it."""
    assert task.job.command is not None  # noqa: S101
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="halfguard-") as folder:
        out = Path(folder) / "metrics.json"
        words = [_filled(word, task, out) for word in task.job.command]
        failure = _start(words, task.folder, Path(folder) / "errors")
        metrics = _read(out, task.job.metric) if failure is None else {}
    return RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics=metrics,
        steps=0,
        peak_bytes=_peak_of_children(),
        duration=time.perf_counter() - started,
        failure=failure,
        attempt=attempt,
        environment=environment(),
    )


def _filled(word: str, task: Task, out: Path) -> str:
    values = {"{precision}": task.setting.precision, "{seed}": str(task.seed), "{out}": str(out)}
    for placeholder, value in values.items():  # not str.format: other braces are the script's own
        word = word.replace(placeholder, value)
    return word


def _start(words: list[str], folder: str, errors: Path) -> str | None:
    """Why it failed, or None."""
    try:
        with errors.open("wb") as file:
            done = subprocess.run(  # noqa: S603 - the user's own command, as words and without a shell
                words,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stderr=file,
                check=False,
            )
    except OSError as error:
        raise UsageError(
            f"command: {words[0]!r} cannot be started: {error}.",
            cure=f"It is looked up from the folder of the specification, {folder}.",
        ) from error
    if done.returncode == 0:
        return None
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = last_words(errors)
    return f"the command ended with {how}{': ' if said else ''}{said}"


def _read(out: Path, wanted: str) -> dict[str, float]:
    try:
        body: Any = json.loads(out.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"command: it ended well but left no JSON at {{out}} ({error}).",
            cure='Let the script write one object there: {"accuracy": 0.93}.',
        ) from error
    values = body.items() if isinstance(body, dict) else ()
    metrics = {
        name: float(value)
        for name, value in values
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if wanted not in metrics:
        raise UsageError(
            f"metric.name: the command's metrics have no number {wanted!r}; they have "
            f"{', '.join(map(repr, metrics)) or 'none'}.",
        )
    return metrics


def _peak_of_children() -> int:
    """Resident memory of the largest process started from this one, which starts one only."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
