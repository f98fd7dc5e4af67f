"""The cache: the same answers, and none that are out of date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halfguard.lint.cache import FOLDER, Cache, from_rows, to_rows
from halfguard.lint.engine import lint_bytes
from halfguard.lint.files import find_files
from halfguard.lint.project import Project
from halfguard.lint.run import Linter, run_files
from halfguard.lint.settings import Settings
from tests.lint.helper import FIXTURES, lint
from tests.support.cases import each

BAD = "import torch\nx = y.masked_fill(m, -1e9)\n"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are really checked."""
    paths: list[str] = []
    real = lint_bytes

    def counted(data: bytes, path: str, *rest: object) -> object:
        paths.append(path)
        return real(data, path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("halfguard.lint.run.lint_bytes", counted)
    return paths


def check(root: Path, linter: Linter | None = None) -> list[list[str]]:
    cache = Cache(root)
    files = find_files([root], Settings())
    found = [
        [d.place for d in result.diagnostics]
        for result in run_files(linter or Linter(Settings()), files, cache=cache)
    ]
    cache.save()
    return found


def test_only_what_changed_is_checked_again(tmp_path: Path, checked: list[str]) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(BAD)
    two.write_text(BAD)
    first = check(tmp_path)
    assert len(checked) == 2
    assert check(tmp_path) == first
    assert len(checked) == 2
    two.write_text("import torch\n")
    assert check(tmp_path) == [first[0], []]
    assert checked[2:] == [str(two)]
    assert (tmp_path / FOLDER / ".gitignore").read_text() == "*\n"


def test_settings_and_project_are_part_of_the_key(tmp_path: Path, checked: list[str]) -> None:
    (tmp_path / "one.py").write_text(BAD)
    assert len(check(tmp_path)[0]) == 1
    assert check(tmp_path, Linter(Settings(ignore=("HG1",)))) == [[]]
    assert check(tmp_path, Linter(Settings(), project=Project(known=True))) == [[]]
    assert len(checked) == 3


@each("damage", [b"", b"{", b"[]", b'{"lint": 1}', b'{"lint": [1, "x"], "entries": {}}'])
def test_a_damaged_cache_is_ignored(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "one.py").write_text(BAD)
    first = check(tmp_path)
    (tmp_path / FOLDER / "lint.json").write_bytes(damage)
    assert check(tmp_path) == first


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(BAD)
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    assert len(check(tmp_path)[0]) == 1


def test_findings_survive_json() -> None:
    for path in sorted(FIXTURES.glob("*/bad*.py")):
        found = lint(path.read_bytes(), path.name)
        assert from_rows(json.loads(json.dumps(to_rows(found))), path.name) == found
