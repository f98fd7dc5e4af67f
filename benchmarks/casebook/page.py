"""The scoreboard as a page, in the form of all reports."""

from __future__ import annotations

from benchmarks.casebook.cases import Case
from benchmarks.casebook.drawing import draw_cases, draw_detection
from benchmarks.casebook.scoring import Results, misses, rows
from benchmarks.casebook.tables import GROUPS, HEADS, cells
from halfguard.report.blocks import Block, Figure, Heading, Listing, Page, Table, Text

BARS = (
    "Detection: share of failing programs that each instrument detects, with its 95% interval. An alarm that "
    "the cured program raises as well does not count."
)
CELLS = "Cases: one cell for each. A false alarm is on a healthy program. Empty: not applicable, or not run."


def scoreboard_page(cases: list[Case], results: Results) -> Page:
    failing = sum(not case.healthy for case in cases)
    blocks: list[Block] = [
        Text(f"{failing} programs that fail in 16 bits, and {len(cases) - failing} healthy ones."),
        Figure(draw_detection(rows(cases, results)), BARS),
        Heading("Every case"),
        Figure(draw_cases(cases, results), CELLS),
    ]
    for title, held_out in GROUPS:
        group = [case for case in cases if case.held_out is held_out]
        scored = rows(group, results)
        blocks += [Heading(title), Table(HEADS, [cells(row) for row in scored])]
    missed = misses([case for case in cases if not case.held_out], results)
    titles = {case.name: case.facts["title"] for case in cases}
    blocks += [
        Heading("Development cases that no instrument of halfguard detects"),
        Listing([f"{name}: {titles[name]}" for name in missed]) if missed else Text("None."),
    ]
    title = f"Casebook: who finds {failing} failures, and who stays silent on {len(cases) - failing} healthy"
    return Page(f"{title} programs", blocks)
