"""The part of a run's page that shows its sampled steps: warnings, curves, the latest numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from halfguard.records.ranges import module_label
from halfguard.records.watch import WatchedLayer, WatchRow
from halfguard.report.blocks import Block, Figure, Heading, Mono, Table, Text
from halfguard.report.columns import Column, single_value, thin_columns
from halfguard.report.curves import Line, draw_curves
from halfguard.report.svg import Change

_LINES = 5
_ENDS = (
    " Numbered lines are healings; a layer in FP32 has no headroom to show, so that its curve ends."
)
_LISTED = 20

Bits = dict[str, list[float]]  # of each layer, one entry per sample


def watch_blocks(rows: Sequence[WatchRow], changes: Sequence[Change] = ()) -> Iterator[Block]:
    """Yield the blocks; ``rows`` are in the order of their steps, ``changes`` are drawn in the curves."""
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
    for phase, what in (("forward", "outputs"), ("backward", "gradients")):
        lines = _lines(rows, _series(rows, phase))
        if lines:
            label = f"headroom of {what}, bits"
            yield Figure(
                draw_curves(lines, label=label, log=False, changes=changes),
                f"{label.capitalize()}: how often the largest magnitude can double before half overflows, of "
                f"the layers with the least ({_names(lines)}). A triangle at the upper edge is an overflow."
                f"{_ENDS if changes else ''}",
            )
    yield _latest(rows[-1])


def _series(rows: Sequence[WatchRow], phase: str) -> Bits:
    """Return the headroom of every layer at each sample; infinite where a row does not have it."""
    found: Bits = {}
    for index, row in enumerate(rows):
        for layer in row.layers:
            values = found.setdefault(layer.label, [math.inf] * len(rows))
            values[index] = getattr(layer, phase)
    return found


def _lines(rows: Sequence[WatchRow], series: Bits) -> list[Line]:
    known = {name: bits for name, bits in series.items() if min(bits) < math.inf}
    chosen = sorted(known, key=lambda name: min(known[name]))[:_LINES]
    lines = []
    for index, name in enumerate(chosen):
        columns: list[Column] = [
            single_value(row.step, bits)
            for row, bits in zip(rows, known[name], strict=True)
            if bits < math.inf
        ]
        lines.append(Line(name, thin_columns(columns), index + 1))
    return lines


def _names(lines: Sequence[Line]) -> str:
    return ", ".join(line.name for line in lines)


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
        name = "outside the model" if layer.module is None else module_label(layer.module)
        table.append(
            [
                Mono(name),
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
