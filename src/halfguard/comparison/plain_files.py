"""Logs that need no package: Lightning's ``metrics.csv`` and transformers' ``trainer_state.json``."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from halfguard.comparison.logged_run import LoggedRun, MetricLog
from halfguard.validation.runs.metrics import numeric_values


class _PlainLoader(yaml.SafeLoader):
    """A safe loader that reads a tagged object as None: nothing is constructed."""


_PlainLoader.add_multi_constructor("", lambda loader, suffix, node: None)  # noqa: ARG005


def read_hparams(folder: Path) -> dict[str, Any]:
    """Return what Lightning's loggers write to hparams.yaml; nothing if it is missing or no mapping."""
    try:
        with (folder / "hparams.yaml").open(encoding="utf-8") as file:
            found = yaml.load(file, _PlainLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lightning_csv(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each ``metrics.csv``."""
    for path in files:
        folder = path.parent
        run = LoggedRun(str(folder), folder.name, config=read_hparams(folder))
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for index, row in enumerate(csv.DictReader(file)):
                step = _number(row.get("step"))
                for name, cell in row.items():
                    value = _number(cell)  # an empty cell: not logged at this step
                    if value is not None and name not in ("step", None):
                        run.metrics.add(name, index if step is None else int(step), value)
        yield run


def _number(cell: object) -> float | None:
    try:
        return float(cell) if isinstance(cell, str) else None
    except ValueError:
        return None


def read_trainer_state(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each output folder of transformers' Trainer, from its newest checkpoint.

    The state has the whole log of the run so far. It does not say with which seed the run was started: the
    file beside it that does, training_args.bin, is a pickle, and is not opened.
    """
    runs: dict[Path, list[Path]] = {}
    for path in files:
        folder = path.parent
        in_checkpoint = re.fullmatch(r"checkpoint-\d+", folder.name)
        runs.setdefault(folder.parent if in_checkpoint else folder, []).append(path)
    for folder, parts in runs.items():
        states = [state for state in map(_state, parts) if state is not None]
        if not states:
            damage = f"{parts[-1].name} is damaged"
            yield LoggedRun(str(folder), folder.name, unfinished=damage)
            continue
        state = max(states, key=_global_step)
        name, trial = str(state.get("trial_name") or folder.name), state.get("trial_params")
        config = trial if isinstance(trial, dict) else {}
        yield LoggedRun(str(folder), name, _history(state.get("log_history")), config)


def _state(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def _global_step(state: dict[str, Any]) -> int:
    step = state.get("global_step")
    return step if isinstance(step, int) else 0


def _history(rows: object) -> MetricLog:
    metrics = MetricLog()
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            logged = numeric_values({name: one for name, one in row.items() if one is not None})
            step = int(logged.pop("step", 0))
            for name, value in logged.items():
                metrics.add(name, step, value)
    return metrics
