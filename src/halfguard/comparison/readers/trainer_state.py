"""``trainer_state.json`` of transformers' Trainer: in every checkpoint, and beside them if it was saved.

It has the whole log of the run so far, so the newest one is read. It does not say with which seed the run was
started: the file beside it that does, training_args.bin, is a pickle, and is not opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from halfguard.comparison.logged_run import LoggedRun, MetricLog
from halfguard.validation.runs.metrics import numeric_values

NAME = "transformers' Trainer"
FILES = ("trainer_state.json",)
RANK = 2


def read(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each output folder."""
    runs: dict[Path, list[Path]] = {}
    for path in sorted(files):
        folder = path.parent
        in_checkpoint = re.fullmatch(r"checkpoint-\d+", folder.name)
        runs.setdefault(folder.parent if in_checkpoint else folder, []).append(path)
    for folder, parts in runs.items():
        states = [state for state in map(_state, parts) if state is not None]
        if states:
            yield _run(folder, max(states, key=_global_step))
        else:
            unreadable = f"{parts[-1].name} is damaged"
            yield LoggedRun(place=str(folder), name=folder.name, unfinished=unreadable)


def _state(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return state if isinstance(state, dict) else None


def _global_step(state: dict[str, Any]) -> int:
    step = state.get("global_step")
    return step if isinstance(step, int) else 0


def _run(folder: Path, state: dict[str, Any]) -> LoggedRun:
    metrics = MetricLog()
    history = state.get("log_history")
    for row in history if isinstance(history, list) else ():
        if not isinstance(row, dict):
            continue
        logged = numeric_values({name: one for name, one in row.items() if one is not None})
        step = logged.pop("step", 0)
        for name, value in logged.items():
            metrics.add(name, int(step), value)
    trial = state.get("trial_params")
    return LoggedRun(
        place=str(folder),
        name=str(state.get("trial_name") or folder.name),
        metrics=metrics,
        config=trial if isinstance(trial, dict) else {},
    )
