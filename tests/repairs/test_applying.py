"""A patch is applied as ``patch -p1`` does it, or not at all."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from halfguard.repairs.applying import apply_patch

BEFORE = "import torch\n\na = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\n"


def diff(before: str, after: str, name: str = "train.py") -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", n=1, lineterm=""
    )
    return "\n".join(lines)


@pytest.mark.parametrize(
    "after",
    [
        BEFORE.replace("b = 2\n", "b = 20\n"),
        BEFORE.replace("a = 1\n", ""),
        BEFORE.replace("import torch\n", "import torch\nimport halfguard\n").replace(
            "f = 6", "f = 7"
        ),
        BEFORE + "g = 7\n",
        "first = 0\n" + BEFORE,
    ],
)
def test_the_patched_file_is_the_wanted_one(tmp_path: Path, after: str) -> None:
    (tmp_path / "train.py").write_text(BEFORE)
    assert apply_patch(diff(BEFORE, after), tmp_path)
    assert (tmp_path / "train.py").read_text() == after


def test_two_files_change_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BEFORE)
    (tmp_path / "b.py").write_text("other\n")
    after = BEFORE.replace("b = 2", "b = 3")
    patch = f"{diff(BEFORE, after, 'a.py')}\n{diff(BEFORE, after, 'b.py')}"
    assert not apply_patch(patch, tmp_path)
    assert (tmp_path / "a.py").read_text() == BEFORE
    (tmp_path / "b.py").write_text(BEFORE)
    assert apply_patch(patch, tmp_path)
    assert (tmp_path / "b.py").read_text() == after


def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(BEFORE)
    inside = tmp_path / "inside"
    inside.mkdir()
    patch = diff(BEFORE, BEFORE.replace("a = 1", "a = 2"), "../outside.py")
    assert not apply_patch(patch, inside)
    assert (tmp_path / "outside.py").read_text() == BEFORE
