"""A page in the terminal: no drawings, and no text that controls the terminal."""

from __future__ import annotations

import pytest

from halfguard.cli.pages import print_page
from halfguard.report.blocks import Code, Figure, Heading, Listing, Mono, Page, Table, Text

pytestmark = pytest.mark.usefixtures("seed")


def printed(page: Page, capsys: pytest.CaptureFixture[str]) -> str:
    print_page(page)
    return capsys.readouterr().out


def test_every_block_is_there_and_drawings_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = Page(
        "title",
        [
            Heading("only drawn"),
            Figure("<svg/>", "caption"),
            Heading("shown"),
            Text("a ", Mono("name"), tone="bad"),
            Listing(["one", "two"]),
            Table(("head", "second"), [["cell", "other"]], ["good"]),
            Code("precision: fp32", "yaml"),
        ],
    )
    out = printed(page, capsys)
    for part in ("title", "shown", "a name", "- two", "head", "cell", "    precision: fp32"):
        assert part in out
    for part in ("svg", "caption", "only drawn"):
        assert part not in out


def test_neither_rich_markup_nor_control_characters_act(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "[red]x[/red] :smile: \x1b]0;title\x07 \x1b[2J"
    out = printed(
        Page(evil, [Text(evil), Table((evil,), [[evil]]), Listing([evil]), Code(evil)]), capsys
    )
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.count("[red]") >= 4
    assert out.count(":smile:") >= 3


def test_a_short_word_is_never_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["a candidate with a long name", "INCONCLUSIVE", "why " * 20]]
    out = printed(Page("title", [Table(("candidate", "verdict", "reason"), rows)]), capsys)
    assert "INCONCLUSIVE" in out


def test_names_stay_whole_where_a_table_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "bert.embeddings.word_embeddings.weight"
    wide = Table(("step", "worst", "second"), [["7", f"{name}, {name}", f"{name}, {name}"]])
    narrow = Table(("step", "worst"), [["7", f"{name}, {name}"]])
    out = printed(Page("title", [wide, narrow]), capsys)
    assert out.count(name) == 6
    assert "- step 7; worst bert" in out
    assert max(map(len, out.splitlines())) <= 80
