"""The page of a probe and its heat map: legend, colours, names of any length, and any number of steps."""

from __future__ import annotations

import math
import re

import pytest

from halfguard.records.finding import Finding
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, ProbeReport
from halfguard.report import probe_page, to_html, to_markdown
from halfguard.report.heat_map import HEADROOM_COLOURS, ROWS, draw_heat_map, shown_layers
from tests.report.test_page import EVIL, Tags


def layer(
    name: str, forward: tuple[float, ...], backward: tuple[float, ...] = (1.0,)
) -> LayerRange:
    return LayerRange(
        module=name, kind="Linear", forward=forward, backward=backward,
        underflow_now=0.0, underflow_best=0.0, scale_low=1.0, scale_high=1024.0,
    )  # fmt: skip


def report(*layers: LayerRange, steps: int = 4) -> ProbeReport:
    found = Finding(code="HG601", severity="error", message="outputs reach 1e6.", cure="Use plan.")
    return ProbeReport(
        precision="fp32", steps=steps, scale=1.0, best_scale=1024.0, losses=(1.0,), layers=layers,
        window=ScaleRange(low=1.0, high=1024.0, best=512.0), findings=(found,),
    )  # fmt: skip


# One step for every colour, and one without a value.
EVERY_COLOUR = (*(65504.0 / 2.0 ** (min(limit, 13) - 0.5) for limit, _ in HEADROOM_COLOURS), 0.0)


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_a_page_has_findings_and_layers(write: object) -> None:
    page = write(probe_page(report(layer("wide", (1e6, 1.0)), layer("", (1.0,)))))  # type: ignore[operator]
    for part in (
        "HG601",
        "outputs reach 1e6",
        "Use plan.",
        "wide",
        "overflows",
        "the model itself",
    ):
        assert part in page, part


def test_the_html_is_safe_and_has_a_legend() -> None:
    page = to_html(probe_page(report(layer("wide", EVERY_COLOUR), steps=len(EVERY_COLOUR))))
    for label in ("overflow", "below 6", "12 or more", "no values", "headroom in bits"):
        assert f">{label}</text>" in page, label
    evil = to_html(probe_page(report(layer(EVIL, EVERY_COLOUR), steps=len(EVERY_COLOUR))))
    assert [t for t in Tags(evil).names if t != "title"] == [
        t for t in Tags(page).names if t != "title"  # a long name has its full form as a tooltip
    ]  # fmt: skip


def test_of_many_layers_those_with_the_least_headroom_are_shown_in_their_order() -> None:
    made = report(*(layer(f"m{i}", (2.0 ** (i % 7),), ()) for i in range(ROWS + 50)))
    shown = [int(one.module[1:]) for one in shown_layers(made)]
    assert len(shown) == ROWS
    assert shown == sorted(shown)
    left = set(range(ROWS + 50)) - set(shown)
    assert max(i % 7 for i in left) <= min(i % 7 for i in shown)


def test_numbers_that_are_not_finite_survive_json() -> None:
    made = report(layer("a", (math.nan, math.inf, 0.0)))
    assert repr(ProbeReport.from_json(made.to_json())) == repr(made)


def test_every_colour_is_used() -> None:
    made = report(layer("wide", EVERY_COLOUR, EVERY_COLOUR), steps=len(EVERY_COLOUR))
    in_html = set(re.findall(r'fill="(#\w+)"', draw_heat_map(made)))
    assert in_html == {colour for _, colour in HEADROOM_COLOURS}


def test_equal_neighbours_share_a_rectangle() -> None:
    svg = draw_heat_map(report(layer("a", (1.0,) * 5000, (1.0,) * 5000), steps=5000))
    assert svg.count("<rect") == 12  # ten in the legend, two in the map
    assert "steps 0 to 4999" in svg


def test_everything_stays_inside_the_drawing() -> None:
    long = "encoder.layers." * 9 + "out_proj"
    for steps in (1, 2, 333):
        values = tuple(2.0**step for step in range(steps % 40)) or (math.inf,)
        svg = draw_heat_map(report(layer(long, values, values), steps=steps))
        assert f"<title>{long}</title>" in svg
        for x, width in re.findall(r'<rect [^>]*x="([\d.]+)" y="\d+" width="([\d.]+)"', svg):
            assert float(x) + float(width) <= 720.01
