"""What happened in a run, from its journal: in numbers, drawn, and every unusual step with its cause."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence

from halfguard.records.step import Action, Cause, RunInfo, StepRow, Summary
from halfguard.report import stretches
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
from halfguard.report.curves import Line, Mark, draw, thinned
from halfguard.report.story import Story

_SHOWN = 30  # unusual steps from the beginning, and as many from the end
_MARKS = 400


def run_page(story: Story, folder: str = ".") -> Page:
    """The run on a page; ``folder`` is where it lies, seen from where the page will."""
    summary = story.line.summary()
    blocks: list[Block] = [
        *_in_short(story, summary),
        *_drawn(story),
        *_unusual(story, folder),
        *_epochs(story.line.epochs.values()),
        *_set_up(story.info),
    ]
    return Page(f"Run {story.name}", blocks)


def _in_short(story: Story, summary: Summary) -> Iterator[Block]:
    for problem in story.problems:
        yield Text([problem], "bad")
    if not story.line.parts:
        yield Text(["No step has been written yet."])
        return
    skipped = sum(summary.skipped.values())
    halted = any(row.action is Action.HALT for row in story.line.unusual[-1:])
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
    if story.line.resumed:
        facts.append(f"Resumed {story.line.resumed} times; steps that were run again count once.")
    yield Text([" ".join(facts)])
    if halted:
        yield Text(["The guard stopped this run."], "bad")
    elif not story.line.closed:
        yield Text(
            ["The journal is not closed: the run is still going on, or it ended without a word."]
        )


def _drawn(story: Story) -> Iterator[Block]:
    parts = story.line.parts
    if not parts:
        return
    yield Heading("Over the steps")
    marks = [
        Mark(
            row.step,
            f"step {row.step}: {_word(row.action)}, {_word(row.cause)}",
            bad=not _mild(row),
        )
        for row in _few(story.line.unusual, _MARKS // 2)
    ]
    ticks = " Ticks below are unusual steps." if marks else ""
    for label, columns, told in (
        (
            "loss",
            stretches.loss(parts),
            "the mean of each stretch of healthy steps, and its highest.",
        ),
        (
            "gradient norm",
            stretches.norms(parts),
            "from the lowest to the highest of each stretch.",
        ),
        ("loss scale", stretches.scales(parts), "as it was at the end of each stretch."),
    ):
        lines = [Line(label, thinned(columns), 1)]
        log = None if label == "loss" else True
        yield Figure(
            draw(lines, label=label, log=log, marks=marks), f"{label.capitalize()}: {told}{ticks}"
        )


def _mild(row: StepRow) -> bool:
    """What belongs to every healthy run: a scale that finds its level, a step mended on the spot."""
    return row.action is Action.RETRY or (
        row.action is Action.SKIP and row.cause is Cause.GRADIENT_OVERFLOW
    )


def _unusual(story: Story, folder: str) -> Iterator[Block]:
    rows = story.line.unusual
    if not rows and not story.incidents:
        return
    yield Heading("Unusual steps")
    counts: dict[str, int] = {}
    for row in rows:
        what = f"{_word(row.cause)}, {_word(row.action)}"
        counts[what] = counts.get(what, 0) + 1
    yield Text(["; ".join(f"{count} times {what}" for what, count in counts.items())])
    shown = _few(rows, _SHOWN)
    heads = ("step", "action", "cause", "loss", "gradient norm", "scale", "worst", "incident")
    tones: list[Tone] = ["" if _mild(row) else "bad" for row in shown]
    yield Table(heads, [_step(row, story.incidents, folder) for row in shown], tones)
    if len(shown) < len(rows):
        yield Text([f"{len(rows) - len(shown)} in between are left out; steps.jsonl has them."])
    kept = [name for names in story.incidents.values() for name in names]
    if kept:
        yield Text(["Repeat one, and see what would have prevented it:"])
        where = shlex.quote(f"{story.name}/incidents/{kept[0]}")
        yield Code(f"halfguard replay {where}", "bash")


def _few(rows: Sequence[StepRow], ends: int) -> list[StepRow]:
    return list(rows) if len(rows) <= 2 * ends else [*rows[:ends], *rows[-ends:]]


def _step(row: StepRow, incidents: dict[int, list[str]], folder: str) -> list[str]:
    kept = incidents.get(row.step)
    return [
        str(row.step),
        _word(row.action),
        _word(row.cause),
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


def _set_up(info: RunInfo | None) -> Iterator[Block]:
    if info is None:
        return
    yield Heading("Set-up")
    facts = ", ".join(f"{name} {value}" for name, value in info.environment.items())
    yield Text([f"Started {info.started}; {facts}."])
    yield Code(json.dumps(info.config, default=str), "json")


def _word(value: Action | Cause | None) -> str:
    return "no known cause" if value is None else str(value).replace("_", " ")
