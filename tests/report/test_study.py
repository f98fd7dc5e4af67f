"""The page of a study: the verdict first, all evidence, small size, and markup in names escaped."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.records.study import Approval, Curve, Study, VerdictLabel
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.study import study_page
from halfguard.report.svg import shorten
from halfguard.validation.judgement.verdict import judge
from tests.report.test_page import EVIL, Structure
from tests.validation.studies import curve, losing, run, study


@pytest.fixture
def mixed() -> Study:
    """Return a study with one candidate that broke, one that passes, and one that is undecided."""
    made = study(
        {
            "fp16-mixed": [0.7816, 0.79, None, 0.78, 0.77],
            "fp16-mixed guarded": losing(0.001),
            "bf16-mixed": losing(0.009, wobble=0.006),
        }
    )
    bad = [
        run.model_copy(update={"curve": curve(run.seed, bad=(11, 12), scale=65536.0)})
        if run.candidate == "fp16-mixed"
        else run
        for run in made.runs
    ]
    return made.model_copy(update={"runs": tuple(bad)})


def text_of(page: str) -> str:
    return re.sub(r"<[^>]*>|[`*\\]", "", page.partition("</style>")[2] or page)


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_a_page_has_the_verdict_first_and_all_evidence(mixed: Study, write: Any) -> None:
    page = text_of(write(study_page(mixed, judge(mixed))))
    parts = ["ocr: fp16-mixed FAILS on hmean, bf16-mixed is INCONCLUSIVE, fp16-mixed guarded PASSES",
             "INCONCLUSIVE", "1 of 5 runs failed although fp32 finished", "The question",
             "1.18 (1.15 to 1.21)", "2.9 GB (69%)", "65536 to 524288", "Checklist",
             "for a person", "Return to FP32", "precision: fp32", "Not signed",
             "torch 2.13", "loss is NaN at step 7"]  # fmt: skip
    places = [page.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    assert places[0] == min(places)


def test_curves_are_drawn_and_labelled(mixed: Study) -> None:
    page = to_html(study_page(mixed, judge(mixed)))
    figures = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    labels = ["training loss", "gradient norm", "loss scale"]
    for figure, label in zip(figures, labels, strict=True):
        assert label in figure
        assert "fp16-mixed" in figure
    assert figures[0].count('class="curve c') >= 8  # four lines, four in the legend
    assert "not finite" in figures[1]


def test_names_with_markup_in_them_are_only_text(mixed: Study, tmp_path: Path) -> None:
    clean_page = Structure(to_html(study_page(mixed, judge(mixed))))
    text = mixed.to_json().replace("guarded", EVIL.translate({10: "\\n", 34: '\\"', 27: "\\u001b"}))
    text = text.replace('"ocr"', '"</title><script>alert(1)</script>"')
    evil = Study.from_json(text.replace("loss is NaN", "<img src=x onerror=alert(1)>"))
    assert any("<script>" in run.candidate for run in evil.runs)
    verdict = judge(evil)
    page = to_html(study_page(evil, verdict))
    tags = Structure(page)
    assert tags.parents == []
    assert tags.names == clean_page.names
    assert "<script" not in page
    assert "\x1b" not in page
    markdown = to_markdown(study_page(evil, verdict))
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)
    assert "<script" not in outside
    assert "<img" not in outside


def test_very_long_curves_stay_small() -> None:
    steps = 200_000
    loss = tuple(2.0 + math.sin(i / 50) for i in range(steps))
    long = Curve(steps=tuple(range(steps)), loss=loss, grad_norm=loss, scale=loss)
    made = study({"fp16-mixed": losing(0.0), "bf16-mixed": losing(0.0)})
    runs = [one.model_copy(update={"curve": long}) if one.seed == 0 else one for one in made.runs]
    page = to_html(study_page(made.model_copy(update={"runs": tuple(runs)}), judge(made)))
    assert len(page.encode()) < 300_000
    assert "200000" in page  # the axis still reaches the end


def test_the_page_shows_whether_the_sign_off_is_valid(mixed: Study) -> None:
    verdict = judge(mixed)
    signed = Approval(
        by="Ada <b>", at="2026-01-01", word=VerdictLabel.FAIL, evidence=verdict.evidence
    )
    valid = to_html(study_page(mixed, verdict, signed))
    assert "FAIL signed by Ada &lt;b&gt; on 2026-01-01" in valid
    assert "VOID" not in valid
    changed = mixed.model_copy(update={"runs": mixed.runs[1:]})
    other = signed.model_copy(update={"word": VerdictLabel.PASS})
    for voided in (
        study_page(changed, verdict, signed),  # another study beside the verdict
        study_page(changed, judge(changed), signed),
        study_page(mixed, verdict, other),
    ):
        void = to_html(voided)
        assert "VOID: the study has changed since then." in void
        assert "the sign-off by Ada &lt;b&gt; is void" in void


@given(st.text("aW…- é", max_size=60), st.integers(8, 30))
def test_a_label_fits_its_place_and_keeps_both_ends(name: str, most: int) -> None:
    shown = shorten(name, most)
    assert len(shown) <= most
    if shown != name:
        assert len(shown) == most
        head, _, tail = shown.partition("…") if "…" not in name else (shown[:1], "", shown[-1:])
        assert name.startswith(head)
        assert name.endswith(tail)


def test_no_zero_on_the_page_is_negative() -> None:
    made = study({"fp16-mixed": losing(-0.00001, wobble=0.00002)})
    page = to_html(study_page(made, judge(made)))
    assert "confidence interval: 0.00% to 0.00%" in page
    assert not re.search(r"-0(\.0+)?%", page)
    assert not re.search(r"gain of 0\.00%|>0\.00% gained", page)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0, 0.0, 0.0], [1e300, 2e300, 1e300, 3e300], [1e-300] * 4]
)
def test_no_number_breaks_a_page(values: list[float]) -> None:
    odd = Curve(
        steps=(0, 1, 2, 3),
        loss=(math.inf, -1e308, 1e308, math.nan),
        grad_norm=(0.0, 0.0, 0.0, 0.0),
        scale=(1.0, 0.0, math.inf, 2.0),
    )
    made = study({"fp16-mixed": values}, [1.0, 2.0, 1.5, 1.2])
    made = made.model_copy(
        update={"runs": tuple(one.model_copy(update={"curve": odd}) for one in made.runs)}
    )
    page = to_html(study_page(made, judge(made)))
    assert not re.search(r'[" ](nan|inf|-inf)["%A-Z ]', page.replace("is inf", ""))


def test_a_study_without_curves_and_without_pairs_has_a_page_too() -> None:
    made = study({"fp16-mixed": [0.8]}, [0.8])
    bare = run("fp16-mixed", 0, 0.8, curve=Curve(), peak_bytes=None, environment={})
    made = made.model_copy(update={"runs": (made.runs[0], bare), "speeds": ()})
    page = to_html(study_page(made, judge(made)))
    assert "INCONCLUSIVE" in page
    assert not re.search(r"nan%|\bnan\b|inf%", text_of(page))
