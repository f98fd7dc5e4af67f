"""The sampled steps on a run's page: warnings, curves, and the latest numbers."""

from __future__ import annotations

import json
import math

from halfguard.records import JournalRow
from halfguard.records.watch import (
    LayerUpdates,
    OverflowAhead,
    WatchedLayer,
    WatchRow,
    WatchWarning,
)
from halfguard.report import RunReport, run_page, to_html, to_markdown
from tests.report.test_page import EVIL
from tests.report.test_run import window


def row(step: int, bits: float = 8.0, **more: object) -> WatchRow:
    layers = (
        WatchedLayer(module="encoder", forward=bits, backward=9.0, vanishing=0.25),
        WatchedLayer(module=None, forward=math.inf, backward=3.0),
    )
    return WatchRow(step=step, scale=1024.0, layers=layers, **more)  # type: ignore[arg-type]


def page(*rows: JournalRow) -> str:
    return to_html(run_page(RunReport.of("run", [window(0, 999), *rows])))


def test_a_run_without_a_watch_has_no_such_section() -> None:
    assert "Inside the steps" not in page()


def test_the_curves_are_drawn_with_units() -> None:
    html = page(*(row(step, 12 - step / 100) for step in range(3, 900, 100)))
    assert html.count("<figure>") == 3 + 2  # the run's own curves, then those of headroom
    assert "headroom of outputs, bits" in html
    assert "encoder" in html
    assert "outside the model" in html


def test_a_warning_is_shown_with_its_step_and_names_are_escaped() -> None:
    warning = WatchWarning(warning="swallowed", module="encoder", place="m.py:3", text=EVIL)
    html = page(row(5, -math.inf, warnings=(warning,)))
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
