"""Read the folder of a run for a report. Damaged files become ``problems`` of the report, not errors."""

from __future__ import annotations

import re
from pathlib import Path

from halfguard.errors import RecordError, UsageError
from halfguard.journal.journal import RUN_FILE, STEPS_FILE
from halfguard.journal.jsonl import read_rows
from halfguard.records import JournalRow, RunInfo
from halfguard.report.timeline import RunReport

_INCIDENT = re.compile(r"\d{6,}-r\d+")


def read_run(run_dir: Path) -> RunReport:
    """Read the journal, ``run.json`` and the names of incidents."""
    if not (run_dir / STEPS_FILE).is_file():
        raise UsageError(
            f"{run_dir} is not a run folder: it contains no {STEPS_FILE}.",
            cure=(
                'A guard writes this file if it has a run_dir: hg.Guard(..., run_dir="runs/exp1").'
            ),
        )
    problems: list[str] = []
    rows: list[JournalRow] = []
    try:
        rows.extend(read_rows(run_dir / STEPS_FILE))
    except RecordError as error:
        problems.append(f"The journal is damaged. The rest of it is ignored. {error.message}")
    info = None
    if (run_dir / RUN_FILE).is_file():
        try:
            info = RunInfo.from_json((run_dir / RUN_FILE).read_bytes())
        except RecordError as error:
            problems.append(f"{run_dir / RUN_FILE}: {error.message}")
    folder = run_dir / "incidents"
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    incidents = [name for name in found if _INCIDENT.fullmatch(name)]
    return RunReport.of(str(run_dir), rows, info, incidents, problems)
