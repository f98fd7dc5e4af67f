"""A run as it was found on disk: what its rows say, what else lies there, and what could not be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halfguard.records.rows import Row
from halfguard.records.step import RunInfo
from halfguard.report.timeline import Timeline, timeline


@dataclass(frozen=True)
class Story:
    """A run as it was found: ``problems`` is what could not be read, ``incidents`` the folders by step."""

    name: str
    info: RunInfo | None
    line: Timeline
    incidents: dict[int, list[str]]
    problems: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[Row],
        info: RunInfo | None = None,
        incidents: Sequence[str] = (),
        problems: Sequence[str] = (),
    ) -> Story:
        """From rows in the order of writing, and the names of the incident folders (000123-r0)."""
        by_step: dict[int, list[str]] = {}
        for folder in sorted(incidents):
            number = folder.partition("-r")[0]
            if number.isascii() and number.isdigit():
                by_step.setdefault(int(number), []).append(folder)
        return cls(name, info, timeline(rows), by_step, tuple(problems))

    def to_json(self) -> str:
        """All of it as one JSON object, rows as the journal writes them."""
        body = {
            "kind": "run_report",
            "schema_version": 1,
            "run": self.name,
            "info": None if self.info is None else json.loads(self.info.to_json()),
            "closed": self.line.closed,
            "resumed": self.line.resumed,
            "summary": json.loads(self.line.summary().to_json()),
            "unusual": [json.loads(row.to_json()) for row in self.line.unusual],
            "epochs": [json.loads(row.to_json()) for row in self.line.epochs.values()],
            "incidents": [name for names in self.incidents.values() for name in names],
            "problems": list(self.problems),
        }
        return json.dumps(body)
