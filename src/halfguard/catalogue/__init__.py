"""The catalogue of failures: one code, one name and one page for each, whatever instrument reports it.

Every file ``entries/CODE.md`` is one failure: facts as TOML between two lines ``+++``, then its page. It is
read when it is asked for. Codes are never used for another failure: ``old`` lists those that an entry had
before, and ``removed.txt`` says what answers for those without an entry.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from halfguard.errors import UsageError

Severity = Literal["error", "warning", "note"]
SEEN = {
    "lint": "`halfguard lint` in the source",
    "doctor": "`halfguard doctor` at start-up",
    "probe": "`halfguard probe` before training",
    "why": "`halfguard why` in a run of the script",
    "guard": "`halfguard.Guard` in a run, and its journal",
}
GROUPS = {
    "HG0": "The file itself",
    "HG1": "Constants and numerics",
    "HG2": "Scaler and order of the step",
    "HG3": "Skips, NaN and checkpoints",
    "HG4": "Model, dtype and arguments",
    "HG6": "Ranges and steps of a run",
    "HD0": "The machine",
    "HD1": "The training setup",
    "HD2": "Time and memory",
}
_FOLDER = resources.files(__name__)


@dataclass(frozen=True)
class Entry:
    """One failure: what it is called, who sees it, what to do, and the repairs of its source."""

    code: str
    name: str
    severity: Severity
    seen: tuple[str, ...]
    cure: str
    page: str
    fix: Literal["safe", "unsafe"] | None = None  # of lint
    repairs: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    symptom: bool = False  # what a run shows; another entry may be its cause

    @property
    def title(self) -> str:
        """What happens, in one sentence."""
        return self.page.partition("\n\n")[0].replace("\n", " ")

    @property
    def markdown(self) -> str:
        """The whole page."""
        body = self.page.partition("\n\n")[2]
        facts = [f"severity {self.severity}"]
        facts += [f"{self.fix} fix"] if self.fix else []
        seen = "; ".join(SEEN[name] for name in self.seen)
        head = f"# {self.code}: {self.name}\n\n{self.title}"
        return f"{head}\n\n*{', '.join(facts)}; seen by {seen}*\n\n{body}\n"


@functools.cache
def entry(code: str) -> Entry:
    """Return the entry of a code."""
    _, facts, page = (_FOLDER / "entries" / f"{code}.md").read_text("utf-8").split("+++\n", 2)
    known: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in tomllib.loads(facts).items()
    }
    return Entry(code=code, page=page.strip(), **known)


@functools.cache
def all_entries() -> tuple[Entry, ...]:
    """Return every entry, in the order of the groups."""
    files = (_FOLDER / "entries").iterdir()
    codes = [f.name.removesuffix(".md") for f in files if f.name.endswith(".md")]
    order = list(GROUPS)
    return tuple(entry(code) for code in sorted(codes, key=lambda c: (order.index(c[:3]), c)))


@functools.cache
def old_codes() -> dict[str, str]:
    """Return the codes of today for those that entries had before."""
    return {old: one.code for one in all_entries() for old in one.old}


@functools.cache
def removed_codes() -> dict[str, str]:
    """Return what answers for the codes that have no entry any more."""
    lines = (_FOLDER / "removed.txt").read_text("utf-8").splitlines()
    rows = (line.partition(": ") for line in lines)
    return {code: text for codes, _, text in rows for code in codes.split()}


def find(name: str) -> Entry:
    """Return the entry of a code, an old code or a name; raise a usage error if there is none."""
    code = old_codes().get(name.upper(), name.upper())
    for one in all_entries():
        if code == one.code or name.lower() == one.name:
            return one
    if code in removed_codes():
        raise UsageError(f"{code} was removed: {removed_codes()[code]}")
    raise UsageError(f"{name} is not a code.", cure="'halfguard rule' lists all codes.")


def index() -> str:
    """Return the index of all entries as Markdown, one table per group."""
    lines = [
        "# Failures",
        "",
        "This page lists every failure that halfguard can report. `halfguard rule CODE` prints one entry.",
    ]
    for prefix, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| code | name | seen by | what |", "|---|---|---|---|"]
        lines += [
            f"| [{one.code}]({one.code}.md) | {one.name} | {', '.join(one.seen)} | {one.title} |"
            for one in all_entries()
            if one.code.startswith(prefix)
        ]
    return "\n".join(lines) + "\n"
