"""The table in the reference page is the one that is measured, and its check can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.tables import ops


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Copy the page, to be read and written in place of the real one."""
    page = tmp_path / "ops.md"
    page.write_text(ops.TABLE[0].read_text("utf-8"), "utf-8")
    monkeypatch.setattr(ops, "TABLE", (page, ops.TABLE[1]))
    return page


def test_a_wrong_page_is_noticed_and_rewritten(page: Path) -> None:
    right = page.read_text("utf-8")
    assert ops.update(check=True) == []
    edits = {
        ("| `log` | float16 | 0.500 |", "| `log` | float16 | 1.200 |"): "exceeds 1 ulp",
        ("| `log` | float16 | 0.500 |", "| `ln` | float16 | 0.500 |"): "other operations",
        ("x > log(largest): largest", "none"): "other operations",
    }
    for edit, complaint in edits.items():
        assert edit[0] in right
        page.write_text(right.replace(*edit), "utf-8")
        assert complaint in " ".join(ops.update(check=True)), edit
        assert ops.update(check=False) == []
        assert ops.update(check=True) == []
        assert page.read_text("utf-8").startswith(right.partition("<!-- ops_table: begin")[0])


def test_a_page_without_markers_is_named(page: Path) -> None:
    page.write_text("nothing here", "utf-8")
    with pytest.raises(SystemExit, match=r"ops\.md lacks the lines"):
        ops.update(check=True)
