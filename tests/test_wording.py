"""What users read (pages, help, messages) avoids the words of the style sheet in CONTRIBUTING."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables.sections import read_section
from typer.testing import CliRunner

from halfguard.cli.app import COMMANDS, app
from tests.support.cases import each
from tests.support.docs import ROOT

ROWS = read_section((ROOT / "CONTRIBUTING.md", "words")).splitlines()[2:]
AVOID = sorted({word for row in ROWS for word in re.findall(r"`([^`]+)`", row.split("|")[1])})
PATTERN = re.compile(rf"\b(?:{'|'.join(map(re.escape, AVOID))})\b", re.IGNORECASE)
SOURCE = ROOT / "src" / "halfguard"
ENTRIES = sorted((SOURCE / "catalogue" / "entries").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(markdown: str) -> str:
    """Return a page without code, quoted code, link targets and comments, on one line."""
    for code in (r"^```.*?^```$", r"`[^`\n]*`", r"(?<=\])\([^)]*\)", r"<!--.*?-->"):
        markdown = re.sub(code, " ", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\s+", " ", markdown)


def odd(text: str) -> list[str]:
    """Return each word to avoid with the words around it."""
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in PATTERN.finditer(text)]


def test_the_sheet_lists_words_and_finds_them() -> None:
    assert len(AVOID) >= 40
    found = odd(prose("It told `told` us\n```\nThe cure\n```\nof the bad\nnumber."))
    assert len(found) == 2
    assert "bad number" in found[1]


@each("page", PAGES)
def test_pages_avoid_them(page: Path) -> None:
    assert odd(prose(page.read_text("utf-8"))) == []


def test_the_docs_stay_few() -> None:
    """A page answers a question. Measurements in detail are in benchmarks."""
    assert len(PAGES) - 1 <= 45


def test_the_newest_changes_avoid_them() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    assert odd(prose(newest)) == []


@each("command", [*COMMANDS, ""])
def test_the_help_avoids_them(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"] if command else ["--help"])
    assert shown.exit_code == 0
    assert odd(prose(shown.output)) == []


@each("entry", ENTRIES)
def test_the_catalogue_avoids_them(entry: Path) -> None:
    _, facts, page = entry.read_text("utf-8").split("+++\n", 2)
    cures = " ".join(re.findall(r'^cure = "(.*)"$', facts, flags=re.MULTILINE))
    assert odd(prose(f"{cures}\n{page}")) == []


def printed(source: str) -> Iterator[str]:
    """Yield the texts of a module that it may print: strings of several words, but no docstrings."""
    tree = ast.parse(source)
    has_docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, has_docstring)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else ""
        if isinstance(text, str) and not text.isidentifier() and id(node) not in docstrings:
            yield text


def test_what_a_module_prints() -> None:
    source = '"""A cure."""\nkey = "cure"\nprint(f"{key}: the cure")\nclass A:\n    """Told."""\n'
    assert [found for text in printed(source) for found in odd(text)] == [": the cure"]


def test_messages_avoid_them() -> None:
    found = {
        str(file.relative_to(SOURCE)): words
        for file in sorted(SOURCE.rglob("*.py"))
        if (words := [w for text in printed(file.read_text("utf-8")) for w in odd(prose(text))])
    }
    assert found == {}
