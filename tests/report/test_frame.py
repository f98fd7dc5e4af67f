"""The frame of every page: title, date, versions, and what readers with other senses need."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from benchmarks.casebook import published
from benchmarks.casebook.cases import all_cases
from benchmarks.casebook.page import scoreboard_page

from halfguard.records.script_answer import ScriptAnswer
from halfguard.report.autopsy import autopsy_page
from halfguard.report.blocks import Code, Heading, Mono, Page, Table, Text
from halfguard.report.command_line import (
    hide_secrets,
    hide_secrets_in,
    hide_secrets_in_text,
)
from halfguard.report.html import STYLE, to_html
from halfguard.report.probe import probe_page
from halfguard.report.run import run_page
from halfguard.report.script_answer import script_answer_page
from halfguard.report.study import study_page
from halfguard.validation.judgement.verdict import judge
from tests.report.test_page import Structure, autopsy, layer, report
from tests.report.test_run import make_report
from tests.validation.studies import losing, study


def _study_page() -> Page:
    made = study({"fp16-mixed": losing(0.118), "guarded": losing(0.0)})
    return study_page(made, judge(made))


PAGES: dict[str, Callable[[], Page]] = {
    "probe": lambda: probe_page(report(layer("wide", (1e6, 1.0))), "train.py:job"),
    "run": lambda: run_page(make_report()),
    "study": _study_page,
    "autopsy": lambda: autopsy_page(autopsy()),
    "why": lambda: script_answer_page(ScriptAnswer(script="train.py", outcome="nothing bad")),
    "scoreboard": lambda: scoreboard_page(all_cases(), published.read()),
}
TITLES = {
    "probe": "train.py:job in FP16: wide overflows",
    "run": "Run runs/a applied 299 of 300 steps",
    "study": "ocr: fp16-mixed FAILS on hmean, guarded PASSES",
    "autopsy": "Incident 018321-r0, step 18321: the loss was not finite before it was scaled",
    "why": "No NaN or Inf in 0 backward passes",
    "scoreboard": "Casebook: who finds ",
}


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_says_what_it_shows_and_when(kind: str) -> None:
    page = Structure(to_html(PAGES[kind]()))
    assert page.texts["h1"][0].startswith(TITLES[kind])
    assert page.texts["title"][0] == page.texts["h1"][0]
    made = page.texts["header"][0]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made)
    assert f"halfguard {metadata.version('halfguard')}" in made
    assert re.search(r"torch \d+\.\d+", made)


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_can_be_read_without_seeing_it_and_on_a_phone(kind: str) -> None:
    html = to_html(PAGES[kind]())
    page = Structure(html)
    assert page.all("html") == [{"lang": "en"}]
    assert [len(page.all(tag)) for tag in ("main", "h1", "footer", "header")] == [1, 1, 1, 1]
    assert not page.all("h3")  # headings go from h1 to h2
    assert {"name": "viewport", "content": "width=device-width,initial-scale=1"} in page.all("meta")
    heads = page.all("th")
    assert all(head.get("scope") in ("col", "row") for head in heads)
    assert all(text.strip() for text in page.texts.get("th", []))
    assert len(page.all("thead")) == len(page.all("table"))
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    for drawing in drawings:
        assert re.match(
            r'<svg viewBox="0 0 720 \d+" role="img"><title>[^<]+</title><desc>[^<]+<', drawing
        )
        assert "translate(2.0 " in drawing  # the first entry of a legend
    boxes = [box for box in page.all("div") if box.get("class") == "scroll"]
    assert len(boxes) == len(drawings) + len(page.all("table"))
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_is_one_file_that_loads_nothing(kind: str) -> None:
    html = to_html(PAGES[kind]())
    page = Structure(html)
    assert "default-src 'none'; style-src 'unsafe-inline'" in str(page.all("meta"))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.found}
    assert "url(" not in html
    assert "@import" not in html
    assert not re.search(r"https?://", html.partition("</style>")[2])
    assert all(str(a["href"]).startswith("./") for a in page.all("a"))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_what_is_behind_them(scheme: int) -> None:
    colours = dict(
        re.findall(r"--(\w+):(#\w{6})", STYLE.split("@media (prefers-color-scheme:dark)")[scheme])
    )
    for text in ("ink", "soft"):
        for back in ("paper", "shade"):
            assert _contrast(colours[text], colours[back]) >= 4.5, (text, back)
    for text in ("good", "bad", "mild", "link"):
        assert _contrast(colours[text], colours["paper"]) >= 4.5, text
    for line in (f"c{i}" for i in range(6)):
        assert _contrast(colours[line], colours["paper"]) >= 3, line


def test_text_is_never_smaller_than_14_pixels() -> None:
    assert min(int(size) for size in re.findall(r"font:(\d+)px", STYLE)) == 14
    # 0.9em of 16 pixels is 14.4; a drawing of 720 units is never narrower than 720 pixels
    assert set(re.findall(r"font-size:(\.?\d*\.?\d*)em", STYLE)) == {".9", "1.5", "1.15"}
    assert "min-width:720px" in STYLE


def test_the_title_is_only_text() -> None:
    html = to_html(Page("<b>a</b><script>alert(1)</script> \x1b[31m", [Text(Mono("<i>"))]))
    assert not {"script", "b", "i"} & {tag for tag, _ in Structure(html).found}
    assert "\x1b" not in html


def test_a_cell_without_text_is_no_header() -> None:
    page = Structure(to_html(Page("t", [Heading("h"), Table(("", "a"), [["", "x"]]), Code("c")])))
    assert [head["scope"] for head in page.all("th")] == ["col"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["probe", "a.py:job", "--steps", "3"], ["probe", "a.py:job", "--steps", "3"]),
        (["why", "t.py", "--hf-token", "abc"], ["why", "t.py", "--hf-token", "***"]),
        (["why", "t.py", "--api_key=abc"], ["why", "t.py", "--api_key=***"]),
        (["why", "t.py", "WANDB_API_KEY=abc"], ["why", "t.py", "WANDB_API_KEY=***"]),
        (["why", "t.py", "--password", "a b"], ["why", "t.py", "--password", "***"]),
        (["why", "t.py", "hf_abcdefghijklmnop"], ["why", "t.py", "***"]),
        (["why", "t.py", "0123456789abcdef0123456789abcdef01234567"], ["why", "t.py", "***"]),
        (
            ["why", "t.py", "--data", "s3://me:pw@host/x"],
            ["why", "t.py", "--data", "s3://***@host/x"],
        ),
        (["--tokenizer", "gpt2", "--max-tokens", "512", "--author", "me", "--keywords=a"], None),
        (["A1B2C3D4E5F6G7H8I9J0K1L2M3N4O5P6Q7R8"], ["***"]),
        (["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE3KEY"], ["***"]),
        (["--x=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE3KEY"], ["--x=***"]),
        (["wandb_v1_abcdefgh"], ["***"]),
        (["wandb.key=abcdef12", "+a.apiKey=b"], ["wandb.key=***", "+a.apiKey=***"]),
        (["--wandbKey", "abc"], ["--wandbKey", "***"]),
        (["--header", "Authorization: Bearer abc.def"], ["--header", "Authorization: ***"]),
        (["--header", "X: Bearer abc.def"], ["--header", "X: Bearer ***"]),
        (['{"token": "hunter2", "lr": 1}'], ['{"token": "***", "lr": 1}']),
        (["postgres://u:p@ss@host/db"], ["postgres://***@host/db"]),
        (["--data=datasets/imagenet2012/shards-000000-001281.tar"], None),
        (["--out", str(Path.home())], ["--out", "~"]),
        (["report", f"{Path.home()}/runs/a"], ["report", "~/runs/a"]),
        (["lint", "a_long_name_of_an_experiment_with_words.py"], None),
        (["report", "runs/exp1", "--key", "--json"], ["report", "runs/exp1", "--key", "--json"]),
    ],
)
def test_no_secret_and_no_home_folder_is_shown(words: list[str], shown: list[str] | None) -> None:
    assert list(hide_secrets(words)) == (words if shown is None else shown)


def test_a_command_as_one_text_is_masked_too() -> None:
    assert hide_secrets_in("train.py --token x --lr 1e-3") == "train.py --token '***' --lr 1e-3"
    assert hide_secrets_in("train.py it's --token x") == "train.py it's --token ***"


def test_the_folder_in_which_the_command_ran_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(hide_secrets([f"--out={tmp_path}/a"])) == ["--out=./a"]
    inside = [f"/var{tmp_path}/x", f"{tmp_path}-b/x"]
    assert list(hide_secrets(inside)) == inside


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert list(hide_secrets(["--out=/x/a"])) == ["--out=/x/a"]


def test_what_an_error_names_is_no_secret() -> None:
    assert hide_secrets_in_text("KeyError: 'labels'") == "KeyError: 'labels'"
    assert "hunter2" not in hide_secrets_in_text("key: 'hunter2'")
