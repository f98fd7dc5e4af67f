"""A run as a page: counts, curves, and every unusual step with its cause."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence

from halfguard.records.step import Action, NoteRow, RunInfo, StepRow, Summary
from halfguard.report.blocks import (
    Block,
    Code,
    Heading,
    Link,
    Mono,
    Page,
    Table,
    Text,
    Tone,
)
from halfguard.report.healings import healing_blocks, healing_changes, times
from halfguard.report.run_drawings import both_ends, curve_blocks, is_harmless, unusual_label
from halfguard.report.run_report import RunReport
from halfguard.report.watch import watch_blocks

_SHOWN = 30  # unusual steps listed from the beginning, and as many from the end


def run_page(report: RunReport, folder: str = ".") -> Page:
    """Return the page of a run; ``folder`` is the path from the page to the run, for links."""
    summary, changes = report.timeline.summary(), healing_changes(report.timeline)
    blocks: list[Block] = [
        *_summary(report, summary),
        *curve_blocks(report.timeline, changes),
        *healing_blocks(report.timeline),
        *watch_blocks([row for _, row in sorted(report.timeline.watched.items())], changes),
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
    return f"Run {report.name} applied {summary.applied} of {summary.steps} steps{ended}"


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
        f"Loss scale {summary.scale:g} at the end, lowered {times(summary.scale_reductions)}.",
    ]
    if summary.applied:
        facts.append(f"Gradient norms {summary.grad_norm_min:.3g} to {summary.grad_norm_max:.3g}.")
    if report.timeline.resumed:
        facts.append(f"Resumed {times(report.timeline.resumed)}; a repeated step counts once.")
    yield Text([" ".join(facts)])
    for warning in report.timeline.warnings.values():
        yield Text([f"Warning at step {warning.step}: {warning.text}"], "bad")
    if halted:
        yield Text([f"The guard stopped this run. {last[0].evidence}".rstrip()], "bad")
    elif not report.timeline.closed:
        yield Text(["The journal is not closed: the run has not ended, or it was killed."])


def _unusual_steps(report: RunReport, folder: str) -> Iterator[Block]:
    rows = report.timeline.unusual
    if not rows and not report.incidents:
        return
    yield Heading("Unusual steps")
    counts: dict[str, int] = {}
    for row in rows:
        what = f"{unusual_label(row.cause)}, {unusual_label(row.action)}"
        counts[what] = counts.get(what, 0) + 1
    yield Text(["; ".join(f"{times(count)} {what}" for what, count in counts.items())])
    shown = both_ends(rows, _SHOWN)
    heads = ("step", "action", "cause", "loss", "gradient norm", "scale", "worst", "incident")
    tones: list[Tone] = ["" if is_harmless(row) else "bad" for row in shown]
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
        shown = both_ends(rows, _SHOWN)
        yield Table(("step", "note"), [[str(row.step), row.text] for row in shown])
        if len(shown) < len(rows):
            yield Text([f"{len(rows) - len(shown)} in between are left out; steps.jsonl has them."])


def _step(row: StepRow, incidents: dict[int, list[str]], folder: str) -> list[str]:
    kept = incidents.get(row.step)
    return [
        str(row.step),
        unusual_label(row.action),
        unusual_label(row.cause),
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
