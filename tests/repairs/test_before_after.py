"""Every repair on a file: ``before.py`` becomes ``after.py``, and is left alone the second time.

The first line of a file names the repair and what it is given; a comment ``# here`` marks its line.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import halfguard.repairs
from halfguard.repairs.add_scaler import Region
from halfguard.repairs.applying import apply_patch
from halfguard.repairs.repair import Repair

FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/before.py"))
MODULES = [
    importlib.import_module(f"halfguard.repairs.{module.name}")
    for module in pkgutil.iter_modules(halfguard.repairs.__path__)
]
REPAIRS = {
    name: found
    for module in MODULES
    for name, found in vars(module).items()
    if isinstance(found, Repair)
}


def patch_of(file: Path) -> str:
    """Return the patch that the first line of a file asks for."""
    lines = file.read_text("utf-8").splitlines()
    call = ast.parse(lines[0].removeprefix("# ")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    repair = REPAIRS[ast.unparse(call.value.func)]
    at = {
        mark: number
        for number, line in enumerate(lines, 1)
        for mark in re.findall(r"# (\w+)$", line)
    }
    names = {mark: (str(file), number) for mark, number in at.items()} | {
        "Region": Region,
        "None": None,
    }
    given: dict[str, Any] = {
        str(k.arg): eval(ast.unparse(k.value), {}, names) for k in call.value.keywords
    }
    return repair((str(file), at.get("here", 1)), **given)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_before_becomes_after(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "code.py"
    shutil.copy(folder / "before.py", file)
    patch = patch_of(file)
    assert apply_patch(patch, tmp_path), patch
    assert file.read_text("utf-8") == (folder / "after.py").read_text("utf-8")
    ast.parse(file.read_text("utf-8"))


def test_every_repair_has_a_pair_of_files() -> None:
    tested = {re.match(r"# (\w+)", (f / "before.py").read_text("utf-8"))[1] for f in FOLDERS}  # type: ignore[index]
    assert set(REPAIRS) == tested
