"""Find the code in Markdown files, to run it as a reader would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES_OF_TESTS = ("REQUIREMENTS.md", "device/README.md", "support/standin/README.md")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One command with the output shown below it, or one Python block (then output is empty)."""

    page: str
    line: int
    language: str
    source: str
    output: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that people read: those of the docs first, so that their snippets run once."""
    examples = sorted((ROOT / "examples").rglob("README.md"))
    tests = [ROOT / "tests" / name for name in PAGES_OF_TESTS]
    measured = sorted((ROOT / "benchmarks").rglob("*.md"))
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [*sorted(ROOT.glob("*.md")), *docs, *examples, *tests, *measured]


def snippets(page: Path) -> Iterator[Snippet]:
    """Yield every ``console`` command and every ``python`` block of a page, in order."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    for match in _FENCE.finditer(text):
        language, body = match.groups()
        line = text[: match.start()].count("\n") + 2
        if language == "python":
            yield Snippet(name, line, language, body, "")
        elif language == "console":
            yield from _commands(name, line, body)


def _commands(name: str, line: int, body: str) -> Iterator[Snippet]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Snippet(name, line, "console", command, output.strip("\n"))


def first_diff(page: str) -> str:
    """Return the first ``diff`` of a page."""
    found = re.search(r"^```diff\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, page
    return found[1]


def apply_diff(diff: str, program: str, *, added: int) -> str:
    """Return ``program`` with a diff applied that adds this many lines.

    Its hunks begin with ``@@``. One without a line that the program has is put before it.
    """
    hunks = [hunk.splitlines(keepends=True) for hunk in diff.split("@@\n") if hunk]
    assert sum(line.startswith("+") for hunk in hunks for line in hunk) == added
    for hunk in hunks:
        old = "".join(line[1:] for line in hunk if line[0] in " -")
        new = "".join(line[1:] for line in hunk if line[0] in " +")
        if not old:
            program = new + program
            continue
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    return program
