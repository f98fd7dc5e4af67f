"""A positive control for each instrument: a program that it must call wrong, and one that it must not."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.casebook.cases import BOOK, Case
from benchmarks.casebook.instruments import Instrument
from benchmarks.casebook.results import Result


class Control(Case):
    """The two programs of one instrument, run in the same way as all others."""

    @property
    def programs(self) -> list[Path]:
        return [self.folder / "control.py", self.folder / "quiet.py"]

    @property
    def name(self) -> str:
        return f"control of {self.folder.name}"

    @cached_property
    def facts(self) -> dict[str, Any]:
        return {"framework": "lightning" if "lightning" in self.folder.name else "plain"}


def control_of(instrument: Instrument) -> Control:
    return Control(BOOK / "controls" / instrument.name)


def passed(result: Result | None) -> bool | None:
    """Return whether the instrument spoke and was silent where it must; None if it was not run."""
    if result is None or len(result.programs) < 2:
        return None
    return bool(result.programs["control"].alarms) and not result.programs["quiet"].alarms
