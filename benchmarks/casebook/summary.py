"""What README.md and the page of results show of the scoreboard and of the faults: no case by name."""

from __future__ import annotations

from benchmarks.casebook.cases import Case
from benchmarks.casebook.instruments import INSTRUMENTS
from benchmarks.casebook.scoring import Results, Row, rows
from benchmarks.casebook.tables import markdown
from benchmarks.rate import Rate

HEADS = ("held-out programs", "detected", "in time", "names the line", "false alarms")
FAULT_HEADS = ("training loop", "faults with lasting damage")
# What README.md compares: a row of the scoreboard, and its name there.
COMPARED = {
    "halfguard, all": "**halfguard**",
    "torch.autograd.detect_anomaly": "`torch.autograd.detect_anomaly`",
    "DebugUnderflowOverflow": "`DebugUnderflowOverflow` (transformers)",
    "TorchFix": "TorchFix",
    "the program itself": "no tool: an error, or NaN in the output",
}
TOGETHER = ("halfguard without why", "halfguard, all", "the others, all")
NO_HARM = "-"


def summary(cases: list[Case], results: Results) -> str:
    """Return the number of programs, and the score on those held out; all of one side stand below it."""
    held_out = [case for case in cases if case.held_out]
    (failing, healthy), (failing_here, healthy_here) = _count(cases), _count(held_out)
    seen = [row for row in rows(held_out, results) if row.detected.total]
    counts = (
        f"{failing} failing programs modeled on users' reports, and {healthy} healthy ones; "
        f"{failing_here} and {healthy_here} of them were held out while the tools were built."
    )
    table = markdown(HEADS, [_cells(row, bold=row.title in TOGETHER) for row in seen])
    return "\n\n".join([counts, table, *_not_run({row.title for row in seen})])


def comparison(cases: list[Case], results: Results) -> str:
    """Return the rows of ``COMPARED``, on held-out programs."""
    held_out = [case for case in cases if case.held_out]
    by_title = {row.title: row for row in rows(held_out, results)}
    cells = [[name, *_cells(by_title[title], bold=False)[1:]] for title, name in COMPARED.items()]
    return markdown(HEADS, cells)


def _count(cases: list[Case]) -> tuple[int, int]:
    healthy = sum(case.healthy for case in cases)
    return len(cases) - healthy, healthy


def _not_run(seen: set[str]) -> list[str]:
    missing = [one.title for one in INSTRUMENTS if one.title not in seen]
    return [f"Not run on held-out programs yet: {', '.join(missing)}."] if missing else []


def _cells(row: Row, *, bold: bool) -> list[str]:
    mark = "**" if bold else ""
    rates = (row.detected, row.in_time, row.culprit, row.false_alarms)
    return [f"{mark}{text}{mark}" for text in (row.title, *map(_short, rates))]


def _short(rate: Rate) -> str:
    return f"{rate.hits} of {rate.total}" if rate.total else "-"


def fault_summary(table: str) -> str:
    """Count the faults that harm each training loop, in the table of ``scripts/bench casebook faults``."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    loops, faults = lines[0][1:], lines[2:]
    harmed = [sum(fault[1 + number] != NO_HARM for fault in faults) for number in range(len(loops))]
    counts = [f"{harm} of {len(faults)}" for harm in harmed]
    return markdown(FAULT_HEADS, list(zip(loops, counts, strict=True)))
