"""The published results: one file for all cases, without times and texts, which differ from run to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.casebook.cases import Case
from benchmarks.casebook.controls import control_of
from benchmarks.casebook.instruments import INSTRUMENTS
from benchmarks.casebook.results import Alarm, Ran, Result, load
from benchmarks.casebook.scoring import Results

FILE = Path(__file__).with_name("results.json")


def collect(cases: list[Case], out: Path) -> Results:
    """Return what a folder of results has about the cases and the controls."""
    found: Results = {}
    for instrument in INSTRUMENTS:
        for case in [*cases, control_of(instrument)]:
            result = load(out, case.name, instrument.name)
            if result is not None and result.digest == case.digest:
                found[case.name, instrument.name] = result
    return found


def write(results: Results, path: Path = FILE) -> None:
    rows = [_brief(result) for _, result in sorted(results.items())]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")


def _brief(result: Result) -> dict[str, Any]:
    brief: dict[str, Any] = {
        "case": result.case,
        "instrument": result.instrument,
        "digest": result.digest,
    }
    if result.reason:
        return brief | {"reason": result.reason}
    return brief | {"programs": {name: _brief_run(ran) for name, ran in result.programs.items()}}


def _brief_run(ran: Ran) -> dict[str, Any]:
    brief: dict[str, Any] = {"alarms": [[a.code, a.line, a.module] for a in ran.alarms]}
    if ran.ended != "finished":
        brief["ended"] = ran.ended
    if ran.facts:
        brief["facts"] = ran.facts
    return brief


def read(path: Path = FILE) -> Results:
    results = [_whole(row) for row in json.loads(path.read_text("utf-8"))]
    return {(result.case, result.instrument): result for result in results}


def _whole(row: dict[str, Any]) -> Result:
    programs = {
        name: Ran(
            tuple(Alarm(code, "", line, module) for code, line, module in ran["alarms"]),
            ran.get("ended", "finished"),
            facts=ran.get("facts", {}),
        )
        for name, ran in row.get("programs", {}).items()
    }
    return Result(row["case"], row["instrument"], row["digest"], programs, row.get("reason", ""))


def outdated(cases: list[Case], results: Results) -> list[str]:
    """Return the cases whose programs are others than those of the results."""
    return sorted(
        {
            c.name
            for c in cases
            for (name, _), r in results.items()
            if name == c.name and r.digest != c.digest
        }
    )
