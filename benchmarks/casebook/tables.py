"""The scoreboard as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.casebook.cases import Case
from benchmarks.casebook.controls import control_of, passed
from benchmarks.casebook.instruments import INSTRUMENTS
from benchmarks.casebook.scoring import Results, Row, false_alarms, misses, rows
from benchmarks.rate import Rate

HEADS = (
    "instrument",
    "detected",
    "in time",
    "culprit's line",
    "its patch works",
    "silent on the fix",
    "false alarms",
)
GROUPS = (("Development cases", False), ("Held-out cases", True))


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *lines])


def cells(row: Row) -> list[str]:
    rates = (
        row.detected,
        row.in_time,
        row.culprit,
        row.cured,
        row.silent_on_cure,
        row.false_alarms,
    )
    return [row.title, *map(str, rates)]


def scoreboard(cases: list[Case], results: Results) -> str:
    """Return the tables of both groups, what was missed, and the controls."""
    parts = []
    for title, held_out in GROUPS:
        group = [case for case in cases if case.held_out is held_out]
        parts += [f"### {title}", markdown(HEADS, [cells(row) for row in rows(group, results)])]
    parts += [
        "### Not detected by lint, doctor and the guard, nor by why where it has run",
        missed(cases, results),
    ]
    parts += ["### False alarms of halfguard", alarmed(cases, results)]
    parts += ["### Weights at the end of the run", finite_weights(cases, results)]
    parts += ["### Controls", controls(results)]
    return "\n\n".join(parts)


def missed(cases: list[Case], results: Results) -> str:
    """List misses; of held-out cases only the number is told, so that nobody tunes by them."""
    open_cases = [case for case in cases if not case.held_out]
    facts = {case.name: case.facts for case in open_cases}
    named = misses(open_cases, results)
    hidden = len(misses([case for case in cases if case.held_out], results))
    lines = [[f"`{name}`", facts[name]["title"], facts[name]["seen_first"]] for name in named]
    table = markdown(("case", "what is wrong", "can be seen first at"), lines) if lines else "None."
    return f"{table}\n\nOf the held-out cases: {hidden}."


def alarmed(cases: list[Case], results: Results) -> str:
    """List false alarms of our instruments; of held-out programs only their number is told."""
    found = false_alarms([case for case in cases if not case.held_out], results)
    hidden = len(false_alarms([case for case in cases if case.held_out], results))
    lines = [[f"`{name}`", title, codes] for name, title, codes in found]
    table = markdown(("healthy program", "instrument", "what it said"), lines) if lines else "None."
    return f"{table}\n\nOf held-out programs: {hidden}."


def finite_weights(cases: list[Case], results: Results) -> str:
    """Compare how often the weights are finite at the end: as it is, and with the guard in place."""
    both: list[tuple[bool, bool]] = []
    for case in cases:
        ends = [_finite(results, case, name) for name in ("bare", "guard")]
        if not case.healthy and ends[0] is not None and ends[1] is not None:
            both.append((ends[0], ends[1]))
    bare, guard = (Rate(sum(pair[i] for pair in both), len(both)) for i in (0, 1))
    return (
        f"Of the broken programs with a GradScaler, weights are finite at the end in {bare} as they are, "
        f"and in {guard} with the guard."
    )


def _finite(results: Results, case: Case, instrument: str) -> bool | None:
    result = results.get((case.name, instrument))
    ran = None if result is None else result.programs.get("broken")
    return None if ran is None else ran.facts.get("weights finite")


def controls(results: Results) -> str:
    words = {True: "passed", False: "FAILED", None: "not run"}
    lines = []
    for one in INSTRUMENTS:
        result = results.get((control_of(one).name, one.name))
        said = "" if result is None or "control" not in result.programs else ", ".join(
            f"`{alarm.code}`" for alarm in result.programs["control"].alarms
        )  # fmt: skip
        lines.append([one.title, words[passed(result)], said])
    return markdown(("instrument", "control", "what it said"), lines)
