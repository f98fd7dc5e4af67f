"""Lint on our own examples and docs: only code that shows a failure on purpose is reported."""

from __future__ import annotations

import re
from pathlib import Path

from halfguard.lint.files import find_files
from halfguard.lint.run import Linter, run_files
from halfguard.lint.settings import Settings
from tests.lint.helper import lint

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"```py(?:thon)?\n(.*?)```", re.DOTALL)

# Code that fails on purpose, so that a page or an example can show what happens.
SHOWN = {
    ("examples/audio_lora/unpatched.py", "HG401"),
    ("examples/nan_loss.py", "HG119"),
    ("docs/reference/ops.md", "HG119"),
    ("docs/explanation/myths.md", "HG401"),
    ("docs/how-to/doctor.md", "HG309"),
    ("docs/how-to/fp16-weights.md", "HG309"),
}


def test_examples() -> None:
    linter = Linter(Settings(root=ROOT)).with_project_of(ROOT)
    files = find_files([ROOT / "examples", ROOT / "src"], Settings())
    found = {
        (str(Path(d.path).relative_to(ROOT)), d.code)
        for result in run_files(linter, files)
        for d in result.diagnostics
    }
    assert found <= SHOWN


def test_snippets_of_the_docs() -> None:
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "rules" not in p.parts]
    found = {
        (str(page.relative_to(ROOT)), d.code)
        for page in [*pages, ROOT / "README.md"]
        for code in SNIPPET.findall(page.read_text("utf-8"))
        for d in lint(code, "a.py", Settings())
    }
    assert found <= SHOWN
