"""The page of an autopsy: complete, and free of active content."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from halfguard.records import Action, Cause, StepRow
from halfguard.records.autopsy import Autopsy, Culprit, Cure, ReplayTrial, TensorRange
from halfguard.records.finding import Finding
from halfguard.records.plan import ScaleRange
from halfguard.records.ranges import LayerRange, ProbeReport
from halfguard.report.autopsy import autopsy_page
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.probe import probe_page

NAN = float("nan")
EVIL = "<script>alert(1)</script> & \"q\" 'a' | `x` **b** \x1b[31m\n# h"


def autopsy(text: str = "", **changes: Any) -> Autopsy:
    step = StepRow(
        step=18321, action=Action.SKIP, cause=Cause.FORWARD_OVERFLOW, loss=NAN, grad_norm=NAN,
        scale=1024.0, culprits=(f"up.weight{text}",), batches=(f"float32[2, 3]{text}",),
    )  # fmt: skip
    culprit = Culprit(
        "op", "exp", "forward", f"head{text}", f"train.py{text}", 12, f"y = torch.exp(x){text}",
        kernel="aten.exp.default", dtype="float16",
        inputs=(TensorRange(f"self{text}", (2, 3), "float16", -3.0, 12.5, 0, 0, 0),),
        outputs=(TensorRange("output", (2, 3), "float16", 0.05, 20000.0, 0, 2, 0),),
    )  # fmt: skip
    values: dict[str, Any] = {
        "incident": f"018321-r0{text}",
        "step": step,
        "cause": step.cause,
        "reproduced": "bitwise",
        "how": f"fp16-mixed at loss scale 1024 on cpu{text}",
        "differences": (f"torch: 2.7 then{text}",),
        "culprit": culprit,
        "samples": (3,),
        "trials": (
            ReplayTrial(name=(
                f"the whole step in FP32{text}"
            ), good=False, note=f"ValueError: no{text}"),
            ReplayTrial(name="head in FP32", good=True, loss=1.25, grad_norm=0.5),
        ),
        "cure": Cure(
            what="island", sentence=f"Keep head in FP32.{text}", trial="head in FP32",
            patch=f"islands:\n- module: head{text}",
        ),
    }  # fmt: skip
    return Autopsy(**(values | changes))


@pytest.mark.parametrize("write", [to_html, to_markdown])
def test_a_page_says_everything_and_ends_in_the_recommendation(write: Any) -> None:
    page = write(autopsy_page(autopsy()))
    text = re.sub(r"<[^>]*>|[`*\\]", "", page.partition("</style>")[2] or page)
    parts = ["18321", "018321-r0", "bit-identical", "exp returned the first NaN or Inf", "train.py:12",
             "y = torch.exp(x)", "2 +inf", "ValueError: no",
             "Sample 3", "Recommendation", "Keep head in FP32.", "- module: head"]  # fmt: skip
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    shown = text.partition("This page is a single file")[0].rstrip()  # before the footer
    assert shown.endswith(("- module: head", "```"))


class Structure(HTMLParser):
    """Collects the elements of a page with their attributes and text; only links may refer to anything."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.parents: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)

    @property
    def names(self) -> list[str]:
        return [tag for tag, _ in self.found]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        active = {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}
        assert active == ({"href"} if tag == "a" else set())
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.parents.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.parents.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.parents):
            self.texts[tag][-1] += data


def test_the_html_is_whole_loads_nothing_and_escapes_what_it_is_given() -> None:
    page = to_html(autopsy_page(autopsy(EVIL)))
    tags = Structure(page)
    assert tags.parents == []
    assert (
        tags.names == Structure(to_html(autopsy_page(autopsy()))).names
    )  # no tag came with the text
    assert "script" not in tags.names
    assert "\x1b" not in page
    assert "url(" not in page
    assert "prefers-color-scheme:dark" in page


def test_the_markdown_escapes_what_it_is_given() -> None:
    page = to_markdown(autopsy_page(autopsy(EVIL)))
    outside = re.sub(r"^(`{3,}).*?^\1$", "", page, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    assert "<script" not in outside
    assert "\x1b" not in page
    lines = [line for line in outside.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} <= {6, 7}


def test_a_step_that_did_not_break_again_has_possible_causes_only() -> None:
    gone: dict[str, Any] = {"culprit": None, "cure": None, "trials": (), "samples": ()}
    page = to_markdown(autopsy_page(autopsy(reproduced="no", suspects=("hardware",), **gone)))
    assert "did not fail again" in page
    assert page.rstrip().endswith("- hardware")
    assert "Recommendation" not in page


def test_a_page_without_a_cure_says_so() -> None:
    page = to_markdown(autopsy_page(autopsy(cure=None)))
    assert "None of the changes tried fixes this step" in page


# -- the page of a probe: findings and layers


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


def test_an_error_is_the_title_also_if_no_layer_overflows() -> None:
    page = probe_page(report(layer("narrow", (1.0,))), "train.py:job")
    assert (
        page.title == "train.py:job in FP16: An operation in the forward pass returned NaN or Inf"
    )


def test_numbers_that_are_not_finite_survive_json() -> None:
    made = report(layer("a", (math.nan, math.inf, 0.0)))
    assert repr(ProbeReport.from_json(made.to_json())) == repr(made)
