"""Curves and axes: every number can be drawn, order is kept, and ticks are round and few."""

from __future__ import annotations

import math
import re
from xml.dom import minidom

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfguard.report.curves import Line, draw_curves, gather_columns
from halfguard.report.svg import Change, Mark, fit_axis, number_label, suits_log_axis

numbers = st.floats(allow_nan=True, allow_infinity=True)
finite = st.floats(-1e300, 1e300)


@given(st.lists(finite, min_size=1, max_size=20), st.booleans())
@example([1.0, math.nextafter(1.0, math.inf)], True)
@example([1e299, math.nextafter(1e299, math.inf)], True)
def test_an_axis_holds_its_numbers_in_their_order(values: list[float], log: bool) -> None:
    values = [abs(value) + 1e-290 for value in values] if log else values
    axis = fit_axis(values, 10.0, 90.0, log=log)
    places = [axis.at(value) for value in sorted(values)]
    assert all(10.0 <= place <= 90.0 for place in places)
    assert places == sorted(places)


@given(st.lists(finite, min_size=1, max_size=20), st.booleans())
def test_ticks_lie_on_the_axis_and_are_few(values: list[float], log: bool) -> None:
    axis = fit_axis([abs(v) + 1e-290 for v in values] if log else values, 0.0, 1.0, log=log)
    ticks = axis.ticks(5)
    assert len(ticks) <= 12
    assert all(
        (axis.low <= tick * (1 + 1e-9) and tick * (1 - 1e-9) <= axis.high) or tick <= 0
        for tick in ticks
    )
    assert ticks == sorted(ticks)


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0.0, 10.0, False, [0, 2, 4, 6, 8, 10]),
        (1e-3, 1e3, True, [1e-3, 1e-1, 1e1, 1e3]),
        (1024.0, 8192.0, True, [1024.0, 2048.0, 4096.0, 8192.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, log: bool, expected: list[float]) -> None:
    assert fit_axis([low, high], 0.0, 1.0, log=log).ticks(5) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (65536.0, "65536"), (1e-8, "1e-8"), (2.5e7, "2e7"), (0.01, "0.01")],
)
def test_numbers_beside_an_axis_are_short(value: float, text: str) -> None:
    assert number_label(value) == text


def test_a_log_axis_is_used_where_numbers_span_decades() -> None:
    assert suits_log_axis([0.01, 1.0])
    assert not suits_log_axis([0.5, 1.0])
    assert not suits_log_axis([0.0, 1.0])
    assert not suits_log_axis([])


@given(
    st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=3), st.sampled_from([None, True])
)
@example([[1.0000000000000002e300]], None)
@example([[1e308]], True)
@example([[1e-308]], True)
def test_every_number_can_be_drawn(runs: list[list[float]], log: bool | None) -> None:
    lines = [
        Line(f"line {i}", gather_columns([(range(len(run)), run)]), i) for i, run in enumerate(runs)
    ]
    svg = draw_curves(lines, label="a < b", log=log, marks=[Mark(3, "x & y")])
    minidom.parseString(svg)
    assert not re.search(r'[="MLHVh ](nan|-?inf)\b', svg)


def test_a_line_goes_where_its_numbers_are_and_breaks_where_there_are_none() -> None:
    values = [1.0, 2.0, math.nan, 4.0, 3.0]
    svg = draw_curves([Line("loss", gather_columns([(range(5), values)]), 1)], label="loss")
    paths = re.findall(r'<path class="curve c1" d="M([^"]*)"', svg)
    assert len(paths) == 1 + 2  # the legend has one too
    paths = paths[1:]
    heights = [float(part.split()[1]) for path in paths for part in path.split("L")]
    assert heights[0] > heights[1] > heights[3] > heights[2]  # y grows downwards in SVG
    assert "step 2: not finite" in svg


def test_the_spread_of_seeds_is_a_band() -> None:
    svg = draw_curves(
        [Line("a", gather_columns([(range(4), [1.0] * 4), (range(4), [2.0] * 4)]), 0)], label="loss"
    )
    assert svg.count('class="band c0"') == 1 + 1  # with the legend
    assert "lowest to highest</text>" in svg


def test_lines_that_cover_each_other_differ_in_more_than_colour() -> None:
    columns = gather_columns([(range(50), [1.0] * 50)])
    svg = draw_curves([Line("a", columns, 0), Line("b", columns, 1)], label="loss")
    shapes = {
        style: set(re.findall(rf'class="dot {style}" transform="[^"]*" d="([^"]*)"', svg))
        for style in ("c0", "c1")
    }
    assert all(len(found) == 1 for found in shapes.values())
    assert shapes["c0"] != shapes["c1"]
    places = [
        re.findall(rf'class="dot {style}" transform="translate\(([\d.]+) ', svg) for style in shapes
    ]
    assert not {*places[0][1:]} & {*places[1][1:]}  # after the legend's own
    paths = re.findall(r'<path class="curve (c\d)" d="M[\d.]+ [\d.]+L', svg)
    assert paths == ["c0", "c1"]  # the baseline lies below


def test_a_drawing_has_a_name_a_description_and_a_legend_for_everything_in_it() -> None:
    line = Line("loss", gather_columns([(range(9), [3.0, *[1.0] * 7, math.nan])]), 1)
    marks = [Mark(2, "a"), Mark(3, "b", "repeated in FP32"), Mark(4, "c", "rolled back or stopped")]
    changes = [Change(5, "1", "x"), Change(6, "2", "y", undone=True)]
    svg = draw_curves([line], label="loss", marks=marks, changes=changes)
    assert 'role="img"><title>loss over steps</title><desc>loss. loss: from 3 to 1' in svg
    for label in ("loss", "not finite", "skipped", "repeated in FP32", "rolled back or stopped",
                  "an island was added", "an island was removed", "step"):  # fmt: skip
        assert f">{label}</text>" in svg, label
    bare = draw_curves([Line("loss", gather_columns([(range(9), [1.0] * 9)]), 1)], label="loss")
    assert "skipped" not in bare
    assert "not finite" not in bare
