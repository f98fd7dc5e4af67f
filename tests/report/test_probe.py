"""The page of a probe: findings and layers."""

from __future__ import annotations

import math

import pytest

from halfguard.records.finding import Finding
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, ProbeReport
from halfguard.report import probe_page, to_html, to_markdown
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


def test_the_html_is_safe() -> None:
    page, evil = (to_html(probe_page(report(layer(name, (1.0,))))) for name in ("wide", EVIL))
    assert Tags(evil).names == Tags(page).names


def test_numbers_that_are_not_finite_survive_json() -> None:
    made = report(layer("a", (math.nan, math.inf, 0.0)))
    assert repr(ProbeReport.from_json(made.to_json())) == repr(made)
