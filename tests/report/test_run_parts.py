"""Healings and sampled steps on the page of a run."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from halfguard.records import Action, Cause, HealingRow, JournalRow
from halfguard.records.watch import (
    LayerUpdates,
    OverflowAhead,
    WatchedLayer,
    WatchRow,
    WatchWarning,
)
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.run import run_page
from halfguard.report.timeline import RunReport, build_timeline
from tests.report.test_page import EVIL, Structure
from tests.report.test_run import unusual, window

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "how-to" / "healed-run.svg"


def healing(step: int, action: str = "applied", **more: object) -> HealingRow:
    values = {
        "island": "module up",
        "module": "up.act",
        "file": "train.py",
        "line": 7,
        "text": "It failed.",
    }
    return HealingRow(step=step, action=action, **(values | more))  # type: ignore[arg-type]


def retried(step: int) -> JournalRow:
    return unusual(step, Action.RETRY, loss=1.0, grad_norm=1.0, scale=512.0)


ROWS: list[JournalRow] = [
    window(0, 9),
    retried(10),
    window(11, 19, scale=512.0),
    retried(20),
    healing(20),
    window(21, 59, scale=1024.0),
    unusual(60, Action.SKIP, Cause.GRADIENT_OVERFLOW, routine=True),
    retried(61),
    healing(61, "taken back", island="module up"),
    healing(61, island="module net.up", text="Its parent."),
    window(62, 99, scale=2048.0),
    healing(80, "stopped", text="Healing ends.", island="", module=None, file="", line=0),
]  # fmt: skip


def page(rows: list[JournalRow]) -> str:
    return to_html(run_page(RunReport.of("a", rows)))


def test_every_change_is_a_line_in_every_curve() -> None:
    figures = re.findall(r"<svg.*?</svg>", page(ROWS), flags=re.DOTALL)
    assert len(figures) == 3  # loss, gradient norm and loss scale
    for figure in figures:
        assert figure.count('class="change"') == 2
        assert figure.count('class="change undone"') == 1
        assert "2: module up taken back, after step 61" in figure


def test_the_table_shows_every_change() -> None:
    text = to_markdown(run_page(RunReport.of("a", ROWS)))
    rows = [line for line in text.splitlines() if re.match(r"\| [123] \|", line)]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[1], row[2], row[3]) for row in cells] == [
        ("20", "in FP32", "module up"),
        ("61", "taken back", "module up"),
        ("61", "in FP32", "module net.up"),
    ]
    assert cells[0][4] == "train.py:7 in up.act"


def test_what_healing_could_not_do_is_told_in_red() -> None:
    assert '<p class="bad">Step 80: Healing ends.</p>' in page(ROWS)
    assert "<p>Step 20: It failed.</p>" in page(ROWS)


def test_a_run_without_healings_and_watch_has_no_such_parts() -> None:
    bare = page([row for row in ROWS if not isinstance(row, HealingRow)])
    assert "Healings" not in bare
    assert "Sampled steps" not in bare
    assert 'class="change' not in bare


def test_a_resumed_run_that_heals_again_has_one_healing() -> None:
    again: list[JournalRow] = [*ROWS[:6], window(11, 19), retried(20), healing(20), window(21, 40)]
    assert [row.step for row in build_timeline(again).healings] == [20]
    report = json.loads(RunReport.of("a", again).to_json())
    assert [row["island"] for row in report["healings"]] == ["module up"]


def test_names_cannot_break_the_page() -> None:
    evil = [*ROWS[:4], healing(20, island=EVIL, text=EVIL, file=EVIL, module=EVIL)]
    assert Structure(page(evil)).names.count("script") == 0


def test_the_picture_in_the_docs_is_small_and_well_formed() -> None:
    text = PICTURE.read_text()
    assert len(text) < 150_000
    ET.fromstring(text)
    assert "prefers-color-scheme:dark" in text
    assert text.count('class="change"') == 2  # one line for each healing, through all drawings


# -- sampled steps: warnings, and the latest numbers


def row(step: int, bits: float = 8.0, **more: object) -> WatchRow:
    layers = (
        WatchedLayer(module="encoder", forward=bits, backward=9.0, vanishing=0.25),
        WatchedLayer(module=None, forward=math.inf, backward=3.0),
    )
    return WatchRow(step=step, scale=1024.0, layers=layers, **more)  # type: ignore[arg-type]


def watched_page(*rows: JournalRow) -> str:
    return to_html(run_page(RunReport.of("run", [window(0, 999), *rows])))


def test_the_latest_numbers_of_the_layers_are_shown_with_units() -> None:
    html = watched_page(*(row(step, 12 - step / 100) for step in range(3, 900, 100)))
    assert "layer at step 803" in html
    assert "outputs, bits" in html
    assert "encoder" in html
    assert "outside the model" in html


def test_a_warning_is_shown_with_its_step_and_names_are_escaped() -> None:
    warning = WatchWarning(warning="swallowed", module="encoder", place="m.py:3", text=EVIL)
    html = watched_page(row(5, -math.inf, warnings=(warning,)))
    assert "Warning at step 5" in html
    assert EVIL not in html
    assert "overflow" in html


def test_the_table_has_lost_updates_and_the_next_overflow() -> None:
    updates = (LayerUpdates(module="encoder", lost=0.5, frozen_at=800),)
    ahead = OverflowAhead(
        module="encoder",
        op="mul",
        file="m.py",
        line=3,
        step=777,
        earliest=700,
        latest=900,
        doubling=30,
    )
    text = to_markdown(run_page(RunReport.of("run", [row(5, updates=updates, forecasts=(ahead,))])))
    assert "50.0%" in text
    assert "800" in text
    assert "777" in text


def test_a_resumed_run_replaces_its_samples() -> None:
    report = RunReport.of("run", [window(0, 9), row(5, 8.0), window(4, 9), row(5, 4.0)])
    assert [one.forward for one in report.timeline.watched.values()] == [4.0]
    assert len(json.loads(report.to_json())["watched"]) == 1
