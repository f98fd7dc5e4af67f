"""A run as a page: counts, curves, and every unusual step with its cause."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from halfguard.records.step import Action, Cause, NoteRow, RunInfo, StepRow, Summary
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
from halfguard.report.curves import Change, Line, Mark, draw_curves, thin_columns
from halfguard.report.healings import healing_blocks, healing_changes
from halfguard.report.run_curves import grad_norm_columns, loss_columns, loss_scale_columns
from halfguard.report.run_report import RunReport
from halfguard.report.watch import watch_blocks

Row = TypeVar("Row")
_SHOWN = 30  # unusual steps listed from the beginning, and as many from the end
_MARKS = 200  # the same for marks in a drawing


def run_page(report: RunReport, folder: str = ".") -> Page:
    """Return the page of a run; ``folder`` is the path from the page to the run, for links."""
    summary, changes = report.timeline.summary(), healing_changes(report.timeline)
    blocks: list[Block] = [
        *_summary(report, summary),
        *_curves(report, changes),
        *healing_blocks(report.timeline),
        *watch_blocks([row for _, row in sorted(report.timeline.watched.items())], changes),
        *_unusual_steps(report, folder),
        *_notes(report.timeline.notes),
        *_epochs(report.timeline.epochs.values()),
        *_environment(report.info),
    ]
    return Page(f"Run {report.name}", blocks)


def _summary(report: RunReport, summary: Summary) -> Iterator[Block]:
    for problem in report.problems:
        yield Text([problem], "bad")
    if not report.timeline.parts:
        yield Text(["No step has been written yet."])
        return
    skipped = sum(summary.skipped.values())
    last = report.timeline.unusual[-1:]
    halted = any(row.action is Action.HALT for row in last)
    tone: Tone = "bad" if halted else "good" if summary.steps == summary.applied else ""
    yield Text(
        [f"{summary.applied} of {summary.steps} steps were applied ({summary.success_rate:.2%})."],
        tone,
    )
    facts = [
        f"{skipped} skipped, {summary.retried} repeated in FP32, {summary.rollbacks} rolled back.",
        f"Loss scale {summary.scale:g} at the end, lowered {summary.scale_reductions} times.",
    ]
    if summary.applied:
        facts.append(f"Gradient norms {summary.grad_norm_min:.3g} to {summary.grad_norm_max:.3g}.")
    if report.timeline.resumed:
        facts.append(f"Resumed {report.timeline.resumed} times; a repeated step counts once.")
    yield Text([" ".join(facts)])
    for warning in report.timeline.warnings.values():
        yield Text([f"Warning at step {warning.step}: {warning.text}"], "bad")
    if halted:
        yield Text([f"The guard stopped this run. {last[0].evidence}".rstrip()], "bad")
    elif not report.timeline.closed:
        yield Text(["The journal is not closed: the run has not ended, or it was killed."])


def _curves(report: RunReport, changes: Sequence[Change]) -> Iterator[Block]:
    parts = report.timeline.parts
    if not parts:
        return
    yield Heading("Over the steps")
    marks = []
    for row in _both_ends(report.timeline.unusual, _MARKS):
        text = f"step {row.step}: {_label(row.action)}, {_label(row.cause)}"
        marks.append(Mark(row.step, text, bad=not _is_harmless(row)))
    ticks = " Ticks at the lower edge are unusual steps." if marks else ""
    ticks += " Numbered lines are healings." if changes else ""
    for label, columns, meaning in (
        ("loss", loss_columns(parts), "mean and highest of each group of healthy steps."),
        ("gradient norm", grad_norm_columns(parts), "lowest to highest of each group."),
        ("loss scale", loss_scale_columns(parts), "at the end of each group."),
    ):
        lines = [Line(label, thin_columns(columns), 1)]
        log = None if label == "loss" else True
        drawing = draw_curves(lines, label=label, log=log, marks=marks, changes=changes)
        yield Figure(drawing, f"{label.capitalize()}: {meaning}{ticks}")


def _is_harmless(row: StepRow) -> bool:
    """Return whether healthy runs have such steps too: the scale adapts, a step is repeated in FP32."""
    if row.action is Action.RETRY or row.routine:
        return True
    # Journals that do not say what is routine have no evidence either.
    overflow = row.action is Action.SKIP and row.cause is Cause.GRADIENT_OVERFLOW
    return overflow and not row.evidence


def _unusual_steps(report: RunReport, folder: str) -> Iterator[Block]:
    rows = report.timeline.unusual
    if not rows and not report.incidents:
        return
    yield Heading("Unusual steps")
    counts: dict[str, int] = {}
    for row in rows:
        what = f"{_label(row.cause)}, {_label(row.action)}"
        counts[what] = counts.get(what, 0) + 1
    yield Text(["; ".join(f"{count} times {what}" for what, count in counts.items())])
    shown = _both_ends(rows, _SHOWN)
    heads = ("step", "action", "cause", "loss", "gradient norm", "scale", "worst", "incident")
    tones: list[Tone] = ["" if _is_harmless(row) else "bad" for row in shown]
    yield Table(heads, [_step(row, report.incidents, folder) for row in shown], tones)
    if len(shown) < len(rows):
        yield Text([f"{len(rows) - len(shown)} in between are left out; steps.jsonl has them."])
    kept = [name for names in report.incidents.values() for name in names]
    if kept:
        yield Text(["Replay one to find what would have prevented it:"])
        where = shlex.quote(f"{report.name}/incidents/{kept[0]}")
        yield Code(f"halfguard replay {where}", "bash")


def _notes(rows: Sequence[NoteRow]) -> Iterator[Block]:
    if rows:
        yield Heading("Notes of the training script")
        shown = _both_ends(rows, _SHOWN)
        yield Table(("step", "note"), [[str(row.step), row.text] for row in shown])
        if len(shown) < len(rows):
            yield Text([f"{len(rows) - len(shown)} in between are left out; steps.jsonl has them."])


def _both_ends(rows: Sequence[Row], count: int) -> list[Row]:
    return list(rows) if len(rows) <= 2 * count else [*rows[:count], *rows[-count:]]


def _step(row: StepRow, incidents: dict[int, list[str]], folder: str) -> list[str]:
    kept = incidents.get(row.step)
    return [
        str(row.step),
        _label(row.action),
        _label(row.cause),
        f"{row.loss:.4g}",
        f"{row.grad_norm:.4g}",
        f"{row.scale:g}",
        Mono(", ".join(row.culprits[:2])),
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
    yield Text([f"Started {info.started}; {facts}."])
    yield Code(json.dumps(info.config, default=str), "json")


def _label(value: Action | Cause | None) -> str:
    return "no known cause" if value is None else str(value).replace("_", " ")
