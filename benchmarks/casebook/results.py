"""What one instrument said about the programs of one case; one JSON file each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Ended = Literal["finished", "error", "out of time", "instrument failed"]


@dataclass(frozen=True)
class Alarm:
    """One thing that an instrument called wrong, with the place that it named."""

    code: str
    text: str = ""
    line: int | None = None
    module: str | None = None


@dataclass(frozen=True)
class Ran:
    """What an instrument said about one program."""

    alarms: tuple[Alarm, ...] = ()
    ended: Ended = "finished"
    error: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """One case under one instrument. Without programs, it was not applicable, and ``reason`` says why."""

    case: str
    instrument: str
    digest: str
    programs: dict[str, Ran] = field(default_factory=dict)
    reason: str = ""

    def save(self, folder: Path) -> None:
        """Write the file as a whole, so that an interrupted run leaves none in half."""
        path = path_of(folder, self.case, self.instrument)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1), "utf-8")
        part.replace(path)


def path_of(folder: Path, case: str, instrument: str) -> Path:
    return folder / case / f"{instrument}.json"


def load(folder: Path, case: str, instrument: str) -> Result | None:
    """Return the result in the folder, or None."""
    path = path_of(folder, case, instrument)
    return from_json(json.loads(path.read_text("utf-8"))) if path.exists() else None


def from_json(data: dict[str, Any]) -> Result:
    programs = {name: ran_from_json(one) for name, one in data["programs"].items()}
    return Result(**data | {"programs": programs})


def ran_from_json(data: dict[str, Any]) -> Ran:
    return Ran(**data | {"alarms": tuple(Alarm(**alarm) for alarm in data["alarms"])})
