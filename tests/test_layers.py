"""The layer contract bites: each kind of wrong import makes import-linter fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import captured

ROOT = Path(__file__).parents[1]


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    command = (sys.executable, "-c", program, "--no-cache")
    return captured(*command, cwd=tree, env={"PYTHONPATH": str(tree / "src")})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_project_keeps_its_contract(tree: Path) -> None:
    result = lint_imports(tree)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "wrong"),
    [
        ("formats.py", "import halfguard.ops"),  # upward
        ("errors.py", "import halfguard.records"),  # upward, at the bottom
        ("formats.py", "import torch"),  # what must run without torch
        ("records/base.py", "import torch"),
        ("lint/engine.py", "import torch"),
        ("report/html.py", "import torch"),
        ("lint/__init__.py", "import halfguard.numerics"),  # lint may use layer 0 only
        ("tracing/__init__.py", "import halfguard.ops"),  # sideways
        ("report/__init__.py", "import halfguard.lint"),  # sideways, on layer 1
        ("guard/policy.py", "import halfguard.guard.guard"),  # a circle inside a package
        ("newpackage/__init__.py", ""),  # a package that has no layer
        ("integrations/__init__.py", "import halfguard.probing"),  # integrations use 0 to 3
    ],
)
def test_a_wrong_import_is_found(tree: Path, module: str, wrong: str) -> None:
    path = tree / "src/halfguard" / module
    path.parent.mkdir(exist_ok=True)
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}\n{wrong}\n")
    result = lint_imports(tree)
    assert result.returncode == 1, result.stdout
    assert "BROKEN" in result.stdout
