"""``metrics.csv`` of Lightning's CSVLogger, with the hparams.yaml beside it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from halfguard.comparison.encodings.hparams_yaml import read_hparams
from halfguard.comparison.logged_run import LoggedRun, MetricLog

NAME = "Lightning's CSVLogger"
FILES = ("metrics.csv",)
RANK = 3


def read(files: Sequence[Path]) -> Iterator[LoggedRun]:
    """Yield one run for each file."""
    for path in sorted(files):
        folder = path.parent
        yield LoggedRun(
            place=str(folder),
            name=folder.name,
            metrics=_metrics(path),
            config=read_hparams(folder),
        )


def _metrics(path: Path) -> MetricLog:
    """Read one row per step; an empty cell means that the metric was not logged there."""
    found = MetricLog()
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for index, row in enumerate(csv.DictReader(file)):
            step = _number(row.get("step"))
            for name, cell in row.items():
                value = _number(cell)
                if value is not None and name not in ("step", None):
                    found.add(name, index if step is None else int(step), value)
    return found


def _number(cell: object) -> float | None:
    try:
        return float(cell) if isinstance(cell, str) else None
    except ValueError:
        return None
