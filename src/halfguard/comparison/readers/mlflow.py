"""MLflow's tracking store in SQLite, opened read-only."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from halfguard.comparison.logged_run import LoggedRun, MetricLog
from halfguard.errors import UsageError

NAME = "MLflow"
FILES = ("*.db", "*.sqlite", "*.sqlite3")
RANK = 0

_MAGIC = b"SQLite format 3\0"
_TABLES = {"experiments", "runs", "metrics", "params", "tags"}
_RUNS = """
    select run_uuid, runs.name, status, start_time, end_time, experiments.name
    from runs join experiments on runs.experiment_id = experiments.experiment_id
    where runs.lifecycle_stage = 'active' order by start_time, run_uuid
"""
_LARGEST = 1.7976931348623157e308  # MLflow stores infinity as the largest double


def read(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield every run that was not deleted, of all experiments."""
    for path in sorted(files):
        if not _is_sqlite(path):
            continue
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as store:
                yield from _runs(store, path)
        except sqlite3.Error as error:
            raise UsageError(
                f"MLflow's store {path} cannot be read: {error}.",
                cure="If it is in use, copy the file and compare the copy.",
            ) from error


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _runs(store: sqlite3.Connection, path: Path) -> Iterator[LoggedRun]:
    tables = {name for (name,) in store.execute("select name from sqlite_master")}
    if not tables >= _TABLES:
        return  # the database of another program
    for run, name, status, start, end, experiment in store.execute(_RUNS).fetchall():
        failure, unfinished = _end(status)
        labels = {"id": run, "name": name or "", "experiment": experiment}
        tags = dict(store.execute("select key, value from tags where run_uuid = ?", [run]))
        own = {key: value for key, value in tags.items() if not key.startswith("mlflow.")}
        yield LoggedRun(
            place=f"{path}:id={run}",
            name=name or run,
            metrics=_metrics(store, run),
            config=dict(store.execute("select key, value from params where run_uuid = ?", [run])),
            labels=own | labels,
            failure=failure,
            unfinished=unfinished,
            seconds=(end - start) / 1000 if start and end else math.nan,
        )


def _metrics(store: sqlite3.Connection, run: str) -> MetricLog:
    found = MetricLog()
    rows = store.execute(
        "select key, step, value, is_nan from metrics where run_uuid = ? order by step, timestamp",
        [run],
    )
    for key, step, value, is_nan in rows:
        number = math.nan if is_nan else float(value)
        infinite = abs(number) >= _LARGEST
        found.add(key, step, math.copysign(math.inf, number) if infinite else number)
    return found


def _end(status: str | None) -> tuple[str | None, str | None]:
    """Return why the run failed, and why its end is unknown."""
    if status == "FAILED":
        return "MLflow has the status FAILED", None
    if status != "FINISHED":
        return None, f"MLflow has the status {status}"
    return None, None
