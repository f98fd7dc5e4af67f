"""The page of an autopsy: complete, and free of active content."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from halfguard.records import Action, Cause, StepRow
from halfguard.records.autopsy import Autopsy, Culprit, Cure, ReplayTrial, TensorRange
from halfguard.report import autopsy_page, to_html, to_markdown

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
        "way": (f"head{text}", "the model"),
        "samples": (3,),
        "trials": (
            ReplayTrial(name=f"the whole step in fp32{text}", good=False, note=f"ValueError: no{text}"),
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
    parts = ["18321", "018321-r0", "bit for bit", "exp made the first bad number", "train.py:12",
             "y = torch.exp(x)", "2 +inf", "head → the model → the loss", "ValueError: no",
             "Sample 3", "Recommendation", "Keep head in FP32.", "- module: head"]  # fmt: skip
    places = [text.find(part) for part in parts]
    assert -1 not in places, parts[places.index(-1)]
    shown = text.partition("This page is one file")[0].rstrip()  # before the footer
    assert shown.endswith(("- module: head", "```"))


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_html_is_whole_loads_nothing_and_escapes_what_it_is_given() -> None:
    page = to_html(autopsy_page(autopsy(EVIL)))
    tags = Tags(page)
    assert tags.open == []
    assert tags.names == Tags(to_html(autopsy_page(autopsy()))).names  # no tag came with the text
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
    assert {line.replace("\\|", "").count("|") for line in lines} <= {7, 8}


def test_a_step_that_did_not_break_again_has_possible_causes_only() -> None:
    gone: dict[str, Any] = {"culprit": None, "cure": None, "trials": (), "way": (), "samples": ()}
    page = to_markdown(autopsy_page(autopsy(reproduced="no", suspects=("hardware",), **gone)))
    assert "did not break again" in page
    assert page.rstrip().endswith("- hardware")
    assert "Recommendation" not in page


def test_a_page_without_a_cure_says_so() -> None:
    page = to_markdown(autopsy_page(autopsy(cure=None)))
    assert "No change that was tried makes this step good" in page


def test_pages_need_no_torch() -> None:
    program = "import sys, halfguard.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
