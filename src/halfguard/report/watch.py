"""The parts of a run's page that show its sampled steps and its healings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from halfguard.records.ranges import module_label
from halfguard.records.step import Action, HealingRow, StepRow
from halfguard.records.watch import WatchedLayer, WatchRow
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


_LISTED = 20


def watch_blocks(rows: Sequence[WatchRow]) -> Iterator[Block]:
    """Yield the blocks; ``rows`` are in the order of their steps."""
    if not rows:
        return
    yield Heading("Inside the steps")
    first, last = rows[0].step, rows[-1].step
    yield Text([f"{len(rows)} sampled steps, {first} to {last}."])
    told = [(row.step, warning) for row in rows for warning in row.warnings]
    for step, warning in told:
        yield Text([f"Warning at step {step}: {warning.text}"], "bad")
    if not told:
        yield Text(
            ["No warning: no swallowed overflow, no overflow ahead, no lost updates."], "good"
        )
    yield _latest(rows[-1])


def _latest(row: WatchRow) -> Table:
    """Return the numbers of the last sample: the layers with the least headroom, and those that freeze."""
    updates = {one.module: one for one in row.updates}
    known = {layer.module for layer in row.layers}
    layers = sorted(row.layers, key=lambda layer: min(layer.forward, layer.backward))[:_LISTED]
    layers += [WatchedLayer(module=name) for name in updates if name not in known][:_LISTED]
    ahead = {one.module: one.step for one in reversed(row.forecasts)}
    heads = (f"layer at step {row.step}", "outputs, bits", "gradients, bits", "gradients lost")
    table = []
    for layer in layers:
        own = None if layer.module is None else updates.get(layer.module)
        frozen = "" if own is None or own.frozen_at is None else str(own.frozen_at)
        table.append(
            [
                Mono(layer.label),
                _bits(layer.forward),
                _bits(layer.backward),
                f"{layer.vanishing:.1%}",
                "-" if own is None else f"{own.lost:.1%}",
                frozen or "-",
                str(ahead.get(layer.module, "-")),
            ]
        )
    return Table((*heads, "updates lost", "frozen at step", "overflow at step"), table)


def _bits(bits: float) -> str:
    if bits == math.inf:
        return "-"
    return "overflow" if bits == -math.inf else f"{bits:.1f}"
