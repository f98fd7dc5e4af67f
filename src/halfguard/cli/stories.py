"""A run's folder read for a report, as far as it can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfguard.records import Row, RunInfo
    from halfguard.report.story import Story

_INCIDENT = re.compile(r"\d{6,}-r\d+")


def read(run_dir: Path) -> Story:
    """Everything that can be read of a run; what cannot is among its ``problems``."""
    from halfguard.errors import UsageError  # noqa: PLC0415
    from halfguard.journal import STEPS_FILE  # noqa: PLC0415
    from halfguard.report.story import Story  # noqa: PLC0415

    if not (run_dir / STEPS_FILE).is_file():
        raise UsageError(
            f"{run_dir} is not the folder of a run: it holds no {STEPS_FILE}.",
            cure='A guard writes one where it is given a folder: hg.Guard(..., run_dir="runs/exp1").',
        )
    problems: list[str] = []
    rows = _rows(run_dir / STEPS_FILE, problems)
    info = _info(run_dir, problems)
    folder = run_dir / "incidents"
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    incidents = [name for name in found if _INCIDENT.fullmatch(name)]
    return Story.of(str(run_dir), rows, info, incidents, problems)


def _rows(path: Path, problems: list[str]) -> list[Row]:
    from halfguard.errors import RecordError  # noqa: PLC0415
    from halfguard.journal import read_rows  # noqa: PLC0415

    rows: list[Row] = []
    try:
        rows.extend(read_rows(path))
    except RecordError as error:
        problems.append(f"The journal is damaged; what follows is left out. {error.message}")
    return rows


def _info(run_dir: Path, problems: list[str]) -> RunInfo | None:
    from halfguard.errors import RecordError  # noqa: PLC0415
    from halfguard.journal import RUN_FILE  # noqa: PLC0415
    from halfguard.records import RunInfo  # noqa: PLC0415

    path = run_dir / RUN_FILE
    if not path.is_file():
        return None
    try:
        return RunInfo.from_json(path.read_bytes())
    except RecordError as error:
        problems.append(f"{path}: {error.message}")
        return None
