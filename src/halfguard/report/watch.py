"""The parts of a run's page that show its sampled steps and its healings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.ranges import module_label
from halfguard.records.step import HealingRow
from halfguard.records.watch import WatchedLayer, WatchRow
from halfguard.report.blocks import Block, Heading, Mono, Table, Text, Tone
from halfguard.report.svg import Change
from halfguard.report.timeline import Timeline

_CHANGES = {"applied": "in FP32", "taken back": "taken back"}  # by action


def healing_changes(timeline: Timeline) -> list[Change]:
    """Return a line for each change of precision; an island is in force from the step after it."""
    return [
        Change(
            row.step + 0.5,
            str(number),
            f"{number}: {row.island} {_CHANGES[row.action]}, after step {row.step}",
            undone=row.action != "applied",
        )
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
            f"The guard changed the precision of the model {times(len(changes))} during training."
        )
        yield _table(changes)
    for row in timeline.healings:
        tone: Tone = "" if row.action in _CHANGES else "bad"
        yield Text(f"Step {row.step}: {row.text}", tone=tone)


def _changes(timeline: Timeline) -> list[HealingRow]:
    return [row for row in timeline.healings if row.action in _CHANGES]


def times(count: int) -> str:
    """Return how often something happened, in words."""
    return "once" if count == 1 else f"{count} times"


def _table(changes: Sequence[HealingRow]) -> Table:
    rows = []
    for number, row in enumerate(changes, start=1):
        place = f"{row.file}:{row.line}" if row.file else ""
        module = "" if row.module is None else f" in {module_label(row.module)}"
        operation = Mono(f"{place}{module}".strip())
        rows.append([str(number), str(row.step), _CHANGES[row.action], Mono(row.island), operation])
    return Table(("number", "after step", "change", "island", "operation"), rows)


_LISTED = 20


def watch_blocks(rows: Sequence[WatchRow]) -> Iterator[Block]:
    """Yield the blocks; ``rows`` are in the order of their steps."""
    if not rows:
        return
    yield Heading("Sampled steps")
    first, last = rows[0].step, rows[-1].step
    yield Text(f"{len(rows)} steps were sampled, from step {first} to step {last}.")
    told = [(row.step, warning) for row in rows for warning in row.warnings]
    for step, warning in told:
        yield Text(f"Warning at step {step}: {warning.text}", tone="bad")
    if not told:
        yield Text(
            "No warnings: no swallowed overflows, no predicted overflows, no lost updates.",
            tone="good",
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
