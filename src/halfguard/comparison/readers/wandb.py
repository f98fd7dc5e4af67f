"""wandb's run files, ``run-<id>.wandb``: offline runs, and the local copies of online ones.

A file has a short header, then a log in LevelDB's format. Each record is a ``Record`` of
wandb_internal.proto; the numbers below are its fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfguard.comparison.encodings.leveldb_log import log_records
from halfguard.comparison.encodings.protobuf import (
    MalformedMessageError,
    fields,
    messages,
    signed,
    text,
)
from halfguard.comparison.logged_run import LoggedRun, MetricLog
from halfguard.validation.runs.metrics import numeric_values

NAME = "wandb"
FILES = ("*.wandb",)
RANK = 1

_MAGIC = b":W&B"
_FILE_HEADER = 7
_HISTORY, _CONFIG, _RUN, _EXIT = 2, 5, 17, 18  # of Record
_INTERRUPTED = 255  # wandb's exit code for Ctrl-C


@dataclass
class _Log:
    """What the files of one run say; a resumed run has several."""

    place: Path
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    metrics: MetricLog = field(default_factory=MetricLog)
    seconds: float = math.nan
    exit_code: int | None = None
    damage: str | None = None


def read(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each run id: a resumed run continues in another file."""
    logs: dict[str, _Log] = {}
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        data = path.read_bytes()
        if not data.startswith(_MAGIC):
            continue
        log = logs.setdefault(path.stem, _Log(path.parent))
        log.exit_code, log.damage = None, None  # the last file says how the run ended
        try:
            for record in log_records(data, _FILE_HEADER):
                _add(log, record)
        except MalformedMessageError as error:
            log.damage = f"{path.name} is damaged ({error})"
    for log in logs.values():
        failure, unfinished = _end(log)
        yield LoggedRun(
            place=str(log.place),
            name=log.name,
            metrics=log.metrics,
            config=log.config,
            labels=log.labels,
            failure=failure,
            unfinished=unfinished,
            seconds=log.seconds,
        )


def _add(log: _Log, record: bytes) -> None:
    for number, value in fields(record):
        if not isinstance(value, bytes):
            continue
        if number == _HISTORY:
            _add_history(log, value)
        elif number == _CONFIG:
            _add_config(log, value)
        elif number == _RUN:
            _add_run(log, value)
        elif number == _EXIT:
            log.exit_code = next((signed(v) for n, v in fields(value) if n == 1), 0)


def _add_run(log: _Log, run: bytes) -> None:
    log.name = text(run, 8) or log.name
    labels = {"id": 1, "project": 3, "group": 6, "job_type": 7}
    found = {name: text(run, number) for name, number in labels.items()}
    tags = (tag.decode(errors="replace") for tag in messages(run, 10))
    found |= {"name": log.name, "tags": ",".join(tags)}
    log.labels |= {name: value for name, value in found.items() if value}
    for config in messages(run, 4):
        _add_config(log, config)


def _add_config(log: _Log, config: bytes) -> None:
    for item in messages(config, 1):
        name, value = _item(item)
        if not name.startswith("_"):
            log.config[name] = value


def _add_history(log: _Log, history: bytes) -> None:
    items = dict(_item(item) for item in messages(history, 1))
    step = items.get("_step")
    for counter in messages(history, 2):
        step = next((signed(value) for number, value in fields(counter) if number == 1), 0)
    runtime = items.get("_runtime")
    if isinstance(runtime, int | float):
        log.seconds = float(runtime)
    logged = {name: value for name, value in items.items() if value is not None}
    for name, number in numeric_values(logged).items():
        if not name.startswith("_"):
            log.metrics.add(name, int(step or 0), number)


def _item(item: bytes) -> tuple[str, Any]:
    """Return name and value of a HistoryItem or ConfigItem; a nested name is joined by dots."""
    name = text(item, 1) or ".".join(part.decode(errors="replace") for part in messages(item, 2))
    try:
        return name, json.loads(text(item, 16) or "null")
    except ValueError:
        return name, None


def _end(log: _Log) -> tuple[str | None, str | None]:
    """Return why the run failed, and why its end is unknown."""
    if log.damage is not None:
        return None, log.damage
    if log.exit_code is None:
        return None, "wandb has not logged its end: it is still running, or was killed"
    if log.exit_code == _INTERRUPTED:
        return None, "it was interrupted"
    return (f"it ended with exit code {log.exit_code}" if log.exit_code else None), None
