"""The data of a run report: journal rows in order, incidents, and the parts that could not be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halfguard.records.journal_rows import JournalRow
from halfguard.records.step import RunInfo
from halfguard.report.timeline import Timeline, build_timeline


@dataclass(frozen=True)
class RunReport:
    """A run as found on disk: ``incidents`` by step, ``problems`` for files that could not be read."""

    name: str
    info: RunInfo | None
    timeline: Timeline
    incidents: dict[int, list[str]]
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[JournalRow],
        info: RunInfo | None = None,
        incidents: Sequence[str] = (),
        problems: Sequence[str] = (),
    ) -> RunReport:
        """Build a report from rows in the order of writing and names of incident folders (000123-r0)."""
        by_step: dict[int, list[str]] = {}
        for folder in sorted(incidents):
            number = folder.partition("-r")[0]
            if number.isascii() and number.isdigit():
                by_step.setdefault(int(number), []).append(folder)
        return cls(name, info, build_timeline(rows), by_step, tuple(problems))

    def to_json(self) -> str:
        """Return one JSON object, with rows as in the journal."""
        body = {
            "kind": "run_report",
            "schema_version": 1,
            "run": self.name,
            "info": None if self.info is None else json.loads(self.info.to_json()),
            "closed": self.timeline.closed,
            "resumed": self.timeline.resumed,
            "summary": json.loads(self.timeline.summary().to_json()),
            "unusual": [json.loads(row.to_json()) for row in self.timeline.unusual],
            "epochs": [json.loads(row.to_json()) for row in self.timeline.epochs.values()],
            "warnings": [json.loads(r.to_json()) for r in self.timeline.warnings.values()],
            "watched": [json.loads(r.to_json()) for r in self.timeline.watched.values()],
            "healings": [json.loads(row.to_json()) for row in self.timeline.healings],
            "notes": [json.loads(row.to_json()) for row in self.timeline.notes],
            "incidents": [name for names in self.incidents.values() for name in names],
            "problems": list(self.problems),
        }
        return json.dumps(body)
