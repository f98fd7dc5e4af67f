"""The curves of a run: loss, gradient norm and loss scale over its steps, with marks for unusual steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from halfguard.records.step import Action, Cause, StepRow
from halfguard.report.blocks import Block, Figure, Heading
from halfguard.report.curves import Line, draw_curves
from halfguard.report.marks import Change, Mark, MarkKind
from halfguard.report.run_curves import (
    EVERY_STEP,
    grad_norm_columns,
    has_every_loss,
    loss_columns,
    loss_scale_columns,
)
from halfguard.report.timeline import Timeline, first_step_of, last_step_of

Row = TypeVar("Row")
_MARKS = 200  # unusual steps that are marked from the beginning, and as many from the end
_KINDS: dict[Action, MarkKind] = {
    Action.RETRY: "repeated in FP32",
    Action.ROLL_BACK: "rolled back or stopped",
    Action.HALT: "rolled back or stopped",
}


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
    return Mark(row.step, text, "scale finds its level" if is_routine(row) else kind)


def is_harmless(row: StepRow) -> bool:
    """Return whether healthy runs have such steps too: the scale adapts, a step is repeated in FP32."""
    return row.action is Action.RETRY or is_routine(row)


def is_routine(row: StepRow) -> bool:
    """Return whether the loss scale finds its level at this step."""
    if row.routine:
        return True
    # Journals that do not say what is routine have no evidence either.
    overflow = row.action is Action.SKIP and row.cause is Cause.GRADIENT_OVERFLOW
    return overflow and not row.evidence


def both_ends(rows: Sequence[Row], count: int) -> list[Row]:
    """Return all rows, or ``count`` from the beginning and as many from the end."""
    return list(rows) if len(rows) <= 2 * count else [*rows[:count], *rows[-count:]]


def unusual_label(value: Action | Cause | None) -> str:
    """Return the name of an action or a cause as words."""
    return "no known cause" if value is None else str(value).replace("_", " ")
