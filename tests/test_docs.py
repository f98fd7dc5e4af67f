"""Every command and snippet in the docs is run, and prints what the page says it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT, Snippet, pages, snippets

ALL = [snippet for page in pages() for snippet in snippets(page)]
# Installing is tested in a fresh environment of its own, by test_install.py.
INSTALLS = {"pip install .", "pip install '.[torch]'", "pip install -e '.[all,dev]'"}
RUNNABLE = [
    s for s in ALL if s.source not in INSTALLS and not s.source.startswith(("scripts/", ".ci/"))
]


def environment(home: Path) -> dict[str, str]:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": binaries, "COLUMNS": "100", "NO_COLOR": "1", "HOME": str(home)}


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.all_cells
@pytest.mark.slow
@pytest.mark.parametrize("snippet", RUNNABLE, ids=str)
def test_snippet(snippet: Snippet, tmp_path: Path) -> None:
    python = snippet.language == "python"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet.source]
        if python
        else ["bash", "-c", snippet.source],
        cwd=tmp_path if python else ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    printed = result.stdout + result.stderr
    assert "Traceback" not in printed, printed
    if python:
        assert result.returncode == 0, printed
    # "..." in the page stands for lines left out there.
    for part in snippet.output.split("..."):
        assert _words(part) in _words(printed), f"{snippet} shows what is not printed:\n{printed}"


def test_scripts_that_the_docs_name_exist() -> None:
    named = {s.source.split()[0] for s in ALL if s.source.startswith(("scripts/", ".ci/"))}
    missing = [name for name in named if not os.access(ROOT / name, os.X_OK)]
    assert not missing


def test_the_readme_has_commands() -> None:
    assert any(s.page == "README.md" and s.source.startswith("halfguard ") for s in RUNNABLE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
