"""Shell completion in a real bash: it is installed, and completes commands and options."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.programs import captured

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
COMPLETE = """
. "$HOME/.bash_completions/halfguard.sh"
complete -p halfguard > /dev/null || exit 1
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_halfguard_completion halfguard
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(home: Path, script: str, *words: str) -> list[str]:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"HOME": str(home), "PATH": binaries}
    done = captured("bash", "--norc", "-c", script, "bash", *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder in which somebody has run the command that the README gives."""
    folder = tmp_path_factory.mktemp("home")
    bash(folder, "halfguard --install-completion; true")  # bash itself must be the parent
    assert "halfguard.sh" in (folder / ".bashrc").read_text()
    return folder


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("halfguard", "li"), ["lint"]),
        (("halfguard", "lint", "--sel"), ["--select"]),
        (("halfguard", "validate", "app"), ["approve"]),
    ],
)
def test_a_word_is_completed(home: Path, words: tuple[str, ...], found: list[str]) -> None:
    assert bash(home, COMPLETE, *words) == found
