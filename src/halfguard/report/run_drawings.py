"""The curves of a run: loss, gradient norm and loss scale over its steps, with marks for unusual steps.

A row of the journal is one unusual step, or a group of healthy steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from halfguard.records.step import Action, Cause, HealthyStepsRow, LossCurve, StepRow
from halfguard.report.blocks import Block, Figure, Heading
from halfguard.report.columns import COLUMNS, Column, single_value, thin_columns
from halfguard.report.curves import Line, draw_curves
from halfguard.report.svg import Change, Mark, MarkKind
from halfguard.report.timeline import Timeline, first_step_of, last_step_of

Row = TypeVar("Row")
_MARKS = 200  # unusual steps that are marked from the beginning, and as many from the end
_KINDS: dict[Action, MarkKind] = {
    Action.RETRY: "repeated in FP32",
    Action.ROLL_BACK: "rolled back or stopped",
    Action.HALT: "rolled back or stopped",
}
Parts = Sequence[StepRow | HealthyStepsRow]
EVERY_STEP = 2000  # a run of up to so many steps is drawn step by step


def curve_blocks(timeline: Timeline, changes: Sequence[Change]) -> Iterator[Block]:
    """Yield the curves; none for a run without steps."""
    parts = timeline.parts
    if not parts:
        return
    yield Heading("Over the steps")
    marks = [_mark(row) for row in both_ends(timeline.unusual, _MARKS)]
    below = " Shapes at the lower edge are unusual steps." if marks else ""
    below += " Numbered lines are healings." if changes else ""
    for label, columns, meaning, spread in (
        ("loss", loss_columns(parts), _loss_meaning(timeline), "lowest to highest"),
        ("gradient norm", grad_norm_columns(parts), "the middle of each group of healthy steps.",
         "lowest to highest of a group"),
        ("loss scale", loss_scale_columns(parts), "at the end of each group.",
         "lowest to highest of neighbouring groups"),
    ):  # fmt: skip
        log = None if label == "loss" else True
        drawing = draw_curves(
            [Line(label, columns, 1)],
            label=label,
            log=log,
            marks=marks,
            changes=changes,
            spread=spread,
        )
        yield Figure(drawing, f"{label.capitalize()}: {meaning}{below}")


def _loss_meaning(timeline: Timeline) -> str:
    parts = timeline.parts
    if not has_every_loss(parts) and not any(getattr(part, "losses", ()) for part in parts):
        return "mean and highest of each group of healthy steps; this journal keeps no others."
    if last_step_of(parts[-1]) - first_step_of(parts[0]) < EVERY_STEP and has_every_loss(parts):
        return "every step."
    return "the line is the mean of neighbouring steps, the band reaches from the lowest to the highest."


def _mark(row: StepRow) -> Mark:
    text = f"step {row.step}: {unusual_label(row.action)}, {unusual_label(row.cause)}"
    kind: MarkKind = _KINDS.get(row.action, "skipped")
    return Mark(row.step, text, "scale finds its level" if row.routine else kind)


def is_harmless(row: StepRow) -> bool:
    """Return whether healthy runs have such steps too: the scale adapts, a step is repeated in FP32."""
    return row.action is Action.RETRY or row.routine


def both_ends(rows: Sequence[Row], count: int) -> list[Row]:
    """Return all rows, or ``count`` from the beginning and as many from the end."""
    return list(rows) if len(rows) <= 2 * count else [*rows[:count], *rows[-count:]]


def unusual_label(value: Action | Cause | None) -> str:
    """Return the name of an action or a cause as words."""
    return "no known cause" if value is None else str(value).replace("_", " ")


def _group(part: HealthyStepsRow, mean: float, low: float, high: float) -> Iterator[Column]:
    """Yield the same values at the first and the last step: the journal keeps no others."""
    for step in sorted({part.first_step, part.last_step}):
        yield Column(step, mean, low, high)


def loss_columns(parts: Parts) -> list[Column]:
    """Return the loss of every step of a short run; of a longer one the mean and the spread of buckets."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, StepRow):
            found.append(single_value(part.step, part.loss))
        elif part.losses is not None:
            found += _curve(part, part.losses)
        else:
            found += _group(part, part.loss_mean, part.loss_mean, part.loss_max)
    short = bool(found) and found[-1].step - found[0].step < EVERY_STEP
    return thin_columns(found, EVERY_STEP if short else COLUMNS)


def _curve(part: HealthyStepsRow, losses: LossCurve) -> Iterator[Column]:
    size = losses.steps_per_point
    lows, highs = losses.low or losses.mean, losses.high or losses.mean
    for index, (mean, low, high) in enumerate(zip(losses.mean, lows, highs, strict=False)):
        first = part.first_step + index * size
        last = min(first + size - 1, part.last_step)
        yield Column((first + last) / 2, mean, low, high)


def has_every_loss(parts: Parts) -> bool:
    """Return whether the loss of every step is known."""
    groups = [part for part in parts if isinstance(part, HealthyStepsRow)]
    return all(
        group.first_step == group.last_step
        or (group.losses is not None and group.losses.steps_per_point == 1)
        for group in groups
    )


def grad_norm_columns(parts: Parts) -> list[Column]:
    """Return the lowest and the highest gradient norm of each group."""
    found: list[Column] = []
    for part in parts:
        if isinstance(part, HealthyStepsRow):
            low, high = part.grad_norm_min, part.grad_norm_max
            # The axis is logarithmic, so the middle of the band is the geometric mean.
            middle = math.sqrt(low) * math.sqrt(high) if low > 0 else high
            found += _group(part, middle, low, high)
        else:
            found.append(single_value(part.step, part.grad_norm))
    return thin_columns(found)


def loss_scale_columns(parts: Parts) -> list[Column]:
    """Return the loss scale at the end of each group."""
    return thin_columns(
        [
            single_value(step, part.scale)
            for part in parts
            for step in (
                sorted({part.first_step, part.last_step})
                if isinstance(part, HealthyStepsRow)
                else [part.step]
            )
        ]
    )
