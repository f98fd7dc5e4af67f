"""The part of a run's page that shows its healings: what was changed when, and the steps before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from halfguard.records.ranges import module_label
from halfguard.records.step import Action, HealingRow, StepRow
from halfguard.report.blocks import Block, Heading, Mono, Table, Text, Tone
from halfguard.report.svg import Change
from halfguard.report.timeline import Timeline, first_step_of, last_step_of

_CHANGES = ("applied", "taken back")


@dataclass(frozen=True)
class Stretch:
    """The steps between two changes: how many, how many of them were bad, and the last loss scale."""

    steps: int
    bad: int
    scale: float | None

    def __str__(self) -> str:
        return f"{self.bad} of {self.steps}"


def healing_changes(timeline: Timeline) -> list[Change]:
    """Return a line for each change of precision; an island is in force from the step after it."""
    return [
        Change(row.step + 0.5, str(number), _describe(row, number), undone=row.action != "applied")
        for number, row in enumerate(_changes(timeline), start=1)
    ]


def healing_blocks(timeline: Timeline) -> Iterator[Block]:
    """Yield the blocks; none for a run without healings."""
    if not timeline.healings:
        return
    yield Heading("Healings")
    changes = _changes(timeline)
    if changes:
        yield Text(
            [
                f"The guard changed the precision of the model {times(len(changes))} while it trained."
            ]
        )
        yield _table(timeline, changes)
    for row in timeline.healings:
        tone: Tone = "" if row.action in _CHANGES else "bad"
        yield Text([f"Step {row.step}: {row.text}"], tone)


def _changes(timeline: Timeline) -> list[HealingRow]:
    return [row for row in timeline.healings if row.action in _CHANGES]


def _describe(row: HealingRow, number: int) -> str:
    return f"{number}: {row.island} {_change(row)}, after step {row.step}"


def _change(row: HealingRow) -> str:
    return "in FP32" if row.action == "applied" else "taken back"


def times(count: int) -> str:
    """Return how often something happened, in words."""
    return "once" if count == 1 else f"{count} times"


def _table(timeline: Timeline, changes: Sequence[HealingRow]) -> Table:
    heads = ("number", "after step", "change", "island", "operation", "bad steps before", "bad steps after",
             "scale before", "scale after")  # fmt: skip
    # Several changes after one step share what was before and what came after.
    steps = sorted({row.step for row in changes})
    around = dict(zip(steps, pairwise(_stretches(timeline, steps)), strict=True))
    rows = []
    for number, row in enumerate(changes, start=1):
        before, after = around[row.step]
        place = f"{row.file}:{row.line}" if row.file else ""
        module = "" if row.module is None else f" in {module_label(row.module)}"
        rows.append(
            [
                str(number),
                str(row.step),
                _change(row),
                Mono(row.island),
                Mono(f"{place}{module}".strip()),
                str(before),
                str(after),
                _scale(before),
                _scale(after),
            ]
        )
    return Table(heads, rows)


def _scale(stretch: Stretch) -> str:
    return "-" if stretch.scale is None else f"{stretch.scale:g}"


def _stretches(timeline: Timeline, cuts: Sequence[int]) -> list[Stretch]:
    """Return the stretches up to each of ``cuts``, that step included, and the one to the end."""
    edges = [-1, *cuts, float("inf")]
    return [_stretch(timeline, low, high) for low, high in pairwise(edges)]


def _stretch(timeline: Timeline, low: float, high: float) -> Stretch:
    steps, bad, scale = 0, 0, None
    for part in timeline.parts:
        inside = min(last_step_of(part), high) - max(first_step_of(part), low + 1) + 1
        if inside > 0:
            steps, scale = steps + int(inside), part.scale
            bad += isinstance(part, StepRow) and _is_bad(part)
    return Stretch(steps, bad, scale)


def _is_bad(row: StepRow) -> bool:
    return row.action is not Action.APPLY and not row.routine
