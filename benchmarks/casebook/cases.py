"""The programs of the casebook and the facts that are known about each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from benchmarks.casebook.split import held_out

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "benchmarks/casebook/programs"
MOMENTS = ("source", "start-up", "run", "comparison")


@dataclass(frozen=True)
class Case:
    """A folder of the casebook: a broken program with its cure, or a healthy one."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def healthy(self) -> bool:
        return self.folder.parent.name == "healthy"

    @property
    def held_out(self) -> bool:
        return held_out(self.name)

    @cached_property
    def facts(self) -> dict[str, Any]:
        known = yaml.safe_load((self.folder / "case.yaml").read_text("utf-8"))
        assert isinstance(known, dict), self.folder
        return known

    @property
    def programs(self) -> list[Path]:
        names = ["program.py"] if self.healthy else ["broken.py", "cured.py"]
        return [self.folder / name for name in names]

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """The frameworks that the programs import: preloaded once instead of in every process."""
        named = {*self.facts.get("needs", []), self.facts["framework"]}
        text = "".join(path.read_text("utf-8") for path in self.programs)
        known = ("lightning", "transformers", "accelerate", "peft", "trl")
        return tuple(name for name in known if name in named or f"import {name}" in text)

    @property
    def ranks(self) -> bool:
        return "two ranks" in self.facts.get("needs", [])

    @cached_property
    def culprit_line(self) -> int:
        """The number of the culprit's line in ``broken.py``."""
        text = (self.folder / "broken.py").read_text("utf-8")
        lines = [line.strip() for line in text.splitlines()]
        return lines.index(self.facts["culprit"]["line"]) + 1

    @property
    def digest(self) -> str:
        """A short digest of the programs: results of other programs are not reused."""
        text = b"".join(path.read_bytes() for path in self.programs)
        return hashlib.sha256(text).hexdigest()[:12]


def all_cases() -> list[Case]:
    """Return failing cases, then healthy ones, by number."""
    found = [*BOOK.glob("[0-9]*/case.yaml"), *(BOOK / "healthy").glob("[0-9]*/case.yaml")]
    cases = [Case(path.parent) for path in found]
    return sorted(cases, key=lambda case: (case.healthy, case.name))


def sample(cases: list[Case], count: int) -> list[Case]:
    """Choose by a hash of the name: the same cases in every run, of nobody's choice."""
    return sorted(cases, key=lambda c: hashlib.sha256(f"sample {c.name}".encode()).digest())[:count]
