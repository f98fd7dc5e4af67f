"""A run as a page: counts, curves, and every unusual step with its cause.

A row of the journal is one unusual step, or a group of healthy steps.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from halfguard.records.step import (
    Action,
    Cause,
    HealthyStepsRow,
    LossCurve,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
)
from halfguard.report.blocks import (
    Block,
    Code,
    Figure,
    Heading,
    Link,
    Mono,
    Page,
    Table,
    Text,
    Tone,
)
from halfguard.report.curves import COLUMNS, Column, Line, draw_curves, single_value, thin_columns
from halfguard.report.svg import Change, Mark, MarkKind
from halfguard.report.timeline import RunReport, Timeline
from halfguard.report.watch import healing_blocks, healing_changes, times, watch_blocks

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
    below = " Shapes at the lower edge mark unusual steps." if marks else ""
    below += " Numbered lines mark changes made by heal." if changes else ""
    for label, columns, meaning, spread in (
        ("loss", loss_columns(parts), _loss_meaning(timeline), "lowest to highest"),
        ("gradient norm", grad_norm_columns(parts), "the middle of each group of healthy steps.",
         "lowest to highest of a group"),
        ("loss scale", loss_scale_columns(parts), "value at the end of each group.",
         "lowest to highest of neighboring groups"),
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
        return (
            "the mean and the highest value of each group of healthy steps; the journal contains "
            "no other values."
        )
    if parts[-1].last_step - parts[0].first_step < EVERY_STEP and has_every_loss(parts):
        return "every step."
    return "the line is the mean of neighboring steps, and the band spans the lowest to the highest value."


def _mark(row: StepRow) -> Mark:
    text = f"step {row.step}: {unusual_label(row.action)}, {unusual_label(row.cause)}"
    kind: MarkKind = _KINDS.get(row.action, "skipped")
    return Mark(row.step, text, "loss scale calibrates" if row.routine else kind)


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
    steps = ((step, part.scale) for part in parts for step in {part.first_step, part.last_step})
    return thin_columns([single_value(*one) for one in sorted(steps)])


_SHOWN = 30  # unusual steps listed from the beginning, and as many from the end


def run_page(report: RunReport, folder: str = ".") -> Page:
    """Return the page of a run; ``folder`` is the path from the page to the run, for links."""
    summary, changes = report.timeline.summary(), healing_changes(report.timeline)
    blocks: list[Block] = [
        *_summary(report, summary),
        *curve_blocks(report.timeline, changes),
        *healing_blocks(report.timeline),
        *watch_blocks([row for _, row in sorted(report.timeline.watched.items())]),
        *_unusual_steps(report, folder),
        *_notes(report.timeline.notes),
        *_epochs(report.timeline.epochs.values()),
        *_environment(report.info),
    ]
    torch = "" if report.info is None else report.info.environment.get("torch", "")
    return Page(_title(report, summary), blocks, torch)


def _title(report: RunReport, summary: Summary) -> str:
    if not report.timeline.parts:
        return f"Run {report.name}"
    unusual = report.timeline.unusual
    ended = " and was stopped" if unusual and unusual[-1].action is Action.HALT else ""
    repeated = f", {summary.retried} of them repeated in FP32" if summary.retried else ""
    return f"Run {report.name} applied {summary.applied} of {summary.steps} steps{repeated}{ended}"


def _summary(report: RunReport, summary: Summary) -> Iterator[Block]:
    for problem in report.problems:
        yield Text(problem, tone="bad")
    if not report.timeline.parts:
        yield Text("The journal contains no steps yet.")
        return
    skipped = sum(summary.skipped.values())
    last = report.timeline.unusual[-1:]
    halted = any(row.action is Action.HALT for row in last)
    all_good = summary.steps == summary.applied and not summary.retried
    tone: Tone = "bad" if halted else "good" if all_good else ""
    applied = (
        f"{summary.applied} of {summary.steps} steps were applied ({summary.success_rate:.2%})"
    )
    repeated = (
        f"{summary.retried} of them ({summary.retried / max(summary.steps, 1):.2%} of all steps)"
    )
    text = f"{applied}, {repeated} after a repeat in FP32." if summary.retried else f"{applied}."
    yield Text(text, tone=tone)
    facts = [
        f"{skipped} skipped, {summary.retried} repeated in FP32, {summary.rollbacks} rolled back.",
        f"Loss scale {summary.scale:g} at the end, lowered {times(summary.scale_reductions)}.",
    ]
    if summary.applied:
        facts.append(f"Gradient norms {summary.grad_norm_min:.3g} to {summary.grad_norm_max:.3g}.")
    if report.timeline.resumed:
        facts.append(
            f"Resumed {times(report.timeline.resumed)}; a step that was run again counts once."
        )
    yield Text(" ".join(facts))
    for warning in report.timeline.warnings.values():
        yield Text(f"Warning at step {warning.step}: {warning.text}", tone="bad")
    if halted:
        yield Text(f"The guard stopped this run. {last[0].evidence}".rstrip(), tone="bad")
    elif not report.timeline.closed:
        yield Text("The journal is not closed: the run has not ended, or it was killed.")


def _unusual_steps(report: RunReport, folder: str) -> Iterator[Block]:
    rows = report.timeline.unusual
    if not rows and not report.incidents:
        return
    yield Heading("Unusual steps")
    counts: dict[str, int] = {}
    for row in rows:
        what = f"{unusual_label(row.cause)}, {unusual_label(row.action)}"
        counts[what] = counts.get(what, 0) + 1
    yield Text("; ".join(f"{times(count)} {what}" for what, count in counts.items()))
    shown = both_ends(rows, _SHOWN)
    heads = ("step", "action", "cause", "loss", "gradient norm", "scale", "worst", "incident")
    tones: list[Tone] = ["" if is_harmless(row) else "bad" for row in shown]
    yield Table(heads, [_step(row, report.incidents, folder) for row in shown], tones)
    if len(shown) < len(rows):
        yield Text(f"{len(rows) - len(shown)} more are in steps.jsonl.")
    kept = [name for names in report.incidents.values() for name in names]
    if kept:
        yield Text("Replay an incident to find a fix:")
        command = f"halfguard replay {shlex.quote(f'{report.name}/incidents/{kept[0]}')}"
        if report.info is not None and not report.info.entry:
            command += " --entry FILE.py:FUNCTION"
        yield Code(command, "bash")
        if command.endswith("FUNCTION"):
            yield Text(
                "FUNCTION returns the job as a halfguard.Workload: model, loss and optimizer."
            )


def _notes(rows: Sequence[NoteRow]) -> Iterator[Block]:
    if rows:
        yield Heading("Notes from the training script")
        shown = both_ends(rows, _SHOWN)
        yield Table(("step", "note"), [[str(row.step), row.text] for row in shown])
        if len(shown) < len(rows):
            yield Text(f"{len(rows) - len(shown)} more are in steps.jsonl.")


def _step(row: StepRow, incidents: dict[int, list[str]], folder: str) -> list[str]:
    kept = incidents.get(row.step)
    return [
        str(row.step),
        unusual_label(row.action),
        f"{row.code} {unusual_label(row.cause)}".strip(),
        f"{row.loss:.4g}",
        f"{row.grad_norm:.4g}",
        f"{row.scale:g}",
        Mono(", ".join(row.worst[:2])),
        Link(f"{folder}/incidents/{kept[0]}".removeprefix("./")) if kept else "",
    ]


def _epochs(summaries: Iterable[Summary]) -> Iterator[Block]:
    rows = [
        [
            str(summary.epoch),
            str(summary.steps),
            f"{summary.success_rate:.1%}",
            str(sum(summary.skipped.values())),
            str(summary.retried),
            f"{summary.scale:g}",
        ]
        for summary in summaries
    ]
    if rows:
        yield Heading("Epochs")
        yield Table(("epoch", "steps", "applied", "skipped", "in FP32", "scale"), rows)


def _environment(info: RunInfo | None) -> Iterator[Block]:
    if info is None:
        return
    yield Heading("Environment")
    facts = ", ".join(f"{name} {value}" for name, value in info.environment.items())
    yield Text(f"Started {info.started}; {facts}.")
    yield Code(json.dumps(info.config, default=str), "json")
