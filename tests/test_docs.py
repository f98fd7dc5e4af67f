"""Every command and snippet in the docs is run, and prints what the page says it prints."""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.cases import each
from tests.support.docs import ROOT, Snippet, pages, snippets
from tests.support.forks import forked_path, group_of
from tests.support.programs import captured

ALL = [snippet for page in pages() for snippet in snippets(page)]
# Installing is tested in a fresh environment of its own, by test_install.py.
INSTALLS = {"pip install .", "pip install '.[torch]'", "pip install -e '.[dev]'"}
RUNNABLE = [
    s for s in ALL if s.source not in INSTALLS and not s.source.startswith(("scripts/", ".ci/"))
]


def environment(home: Path, programs: Path) -> dict[str, str]:
    folders = (programs, Path(sys.executable).parent, os.environ["PATH"])
    path = os.pathsep.join(map(str, folders))
    return {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "HOME": str(home)}


def _group(snippet: Snippet) -> str:
    """Return which frameworks a snippet uses: by itself, or by the files that it names."""
    words = re.findall(r"[\w./-]+\.py\b", snippet.source)
    place = re.match(r"cd (\S+) &&", snippet.source)
    files = [ROOT / (place[1] if place else "") / word for word in words]
    texts = [file.read_text("utf-8") for file in files if file.is_file()]
    return group_of("\n".join([snippet.source, *texts]))


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@functools.cache
def _run_command(source: str, programs: Path) -> str:
    """Run a command with a home of its own; return what it printed."""
    with tempfile.TemporaryDirectory() as home:
        return _run("bash", "-c", source, cwd=ROOT, env=environment(Path(home), programs))[1]


def _run(*command: str, cwd: Path, env: dict[str, str]) -> tuple[int, str]:
    """Return the exit code, and what was printed."""
    done = captured(*command, cwd=cwd, env=env)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.all_cells
@pytest.mark.slow
@pytest.mark.parametrize("snippet", RUNNABLE, ids=str)
def test_snippet(snippet: Snippet, tmp_path: Path) -> None:
    # A command that several pages show runs once. Those of the README run in processes of a user; others
    # run in forks, because importing torch takes seconds.
    first = next(s for s in RUNNABLE if s.source == snippet.source)
    real = first.page == "README.md"
    programs = Path(sys.executable).parent if real else forked_path(_group(snippet))
    if snippet.language == "python":
        python = [str(programs / "python"), "-W", "error", "-c", snippet.source]
        code, printed = _run(*python, cwd=tmp_path, env=environment(tmp_path, programs))
        assert code == 0, printed
    else:
        printed = _run_command(snippet.source, programs)
    assert "Traceback" not in printed, printed
    # "..." in the page stands for lines left out there.
    for part in snippet.output.split("..."):
        assert _words(part) in _words(printed), f"{snippet} shows what is not printed:\n{printed}"


def test_scripts_that_the_docs_name_exist() -> None:
    named = {s.source.split()[0] for s in ALL if s.source.startswith(("scripts/", ".ci/"))}
    missing = [name for name in named if not os.access(ROOT / name, os.X_OK)]
    assert not missing


def test_the_readme_has_commands() -> None:
    assert any(s.page == "README.md" and "halfguard why" in s.source for s in RUNNABLE)


@each("page", pages())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
