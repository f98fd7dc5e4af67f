"""The healings of a run on its page: lines in the curves, and the steps before and after each change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from halfguard.records import Action, Cause, HealingRow, JournalRow
from halfguard.report import RunReport, run_page, to_html, to_markdown
from halfguard.report.timeline import build_timeline
from tests.report.test_page import EVIL, Tags
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


def test_the_table_counts_bad_steps_and_shows_the_scale_before_and_after() -> None:
    text = to_markdown(run_page(RunReport.of("a", ROWS)))
    rows = [line for line in text.splitlines() if re.match(r"\| [123] \|", line)]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
    assert [(row[1], row[2], row[3]) for row in cells] == [
        ("20", "in FP32", "module up"),
        ("61", "taken back", "module up"),
        ("61", "in FP32", "module net.up"),
    ]
    assert cells[0][4] == "train.py:7 in up.act"
    # The step by which the scale finds its level is not bad.
    assert [row[5:7] for row in cells] == [["2 of 21", "1 of 41"], *[["1 of 41", "0 of 38"]] * 2]
    assert [row[7:] for row in cells] == [["512", "512"], *[["512", "2048"]] * 2]


def test_what_healing_could_not_do_is_told_in_red() -> None:
    assert '<p class="bad">Step 80: Healing ends.</p>' in page(ROWS)
    assert "<p>Step 20: It failed.</p>" in page(ROWS)


def test_a_run_without_healings_has_no_such_part() -> None:
    bare = page([row for row in ROWS if not isinstance(row, HealingRow)])
    assert "Healings" not in bare
    assert 'class="change' not in bare


def test_a_resumed_run_that_heals_again_has_one_healing() -> None:
    again: list[JournalRow] = [*ROWS[:6], window(11, 19), retried(20), healing(20), window(21, 40)]
    assert [row.step for row in build_timeline(again).healings] == [20]
    report = json.loads(RunReport.of("a", again).to_json())
    assert [row["island"] for row in report["healings"]] == ["module up"]


def test_names_cannot_break_the_page() -> None:
    evil = [*ROWS[:4], healing(20, island=EVIL, text=EVIL, file=EVIL, module=EVIL)]
    assert Tags(page(evil)).names.count("script") == 0


def test_the_picture_in_the_docs_is_small_and_well_formed() -> None:
    text = PICTURE.read_text()
    assert len(text) < 150_000
    ET.fromstring(text)
    assert "prefers-color-scheme:dark" in text
    assert text.count('class="change"') == 2  # one line for each healing, through all drawings
