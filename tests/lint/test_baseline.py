"""A baseline: old findings are accepted where they were, new ones are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.errors import UsageError
from halfguard.lint.baseline import without_baseline, write_baseline
from halfguard.lint.run import FileResult, Linter
from halfguard.lint.settings import Settings
from tests.support.cases import each

LINE = "x = y.masked_fill(m, -1e9)\n"


def results(path: Path, text: str) -> list[FileResult]:
    path.write_text(f"import torch\n{text}")
    return [Linter(Settings()).check_file(path)]


def test_old_findings_are_accepted_wherever_they_move(tmp_path: Path) -> None:
    file, baseline = tmp_path / "a.py", tmp_path / "baseline.json"
    assert write_baseline(baseline, results(file, LINE)) == 1
    (moved,) = without_baseline(baseline, results(file, f"a = 1\n\n{LINE}"))
    assert moved.diagnostics == []
    (doubled,) = without_baseline(baseline, results(file, LINE + LINE))
    assert [d.line for d in doubled.diagnostics] == [3]
    (other,) = without_baseline(baseline, results(tmp_path / "b.py", LINE))
    assert len(other.diagnostics) == 1


def test_paths_are_relative_to_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    baseline = tmp_path / "baseline.json"
    write_baseline(baseline, results(tmp_path / "src/a.py", LINE))
    assert '"path": "src/a.py"' in baseline.read_text()


@each("text", ["", "{}", "[]", '{"version": 2, "findings": []}'])
def test_what_is_no_baseline_is_a_usage_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    with pytest.raises(UsageError, match="There is no baseline"):
        without_baseline(path, [])
    path.write_text(text)
    with pytest.raises(UsageError, match=r"baseline|version"):
        without_baseline(path, [])
