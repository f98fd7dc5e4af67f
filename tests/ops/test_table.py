"""The table in the reference page is the one that is measured, and its check can fail."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "ops_table"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script as a module, with a page of its own to read and write."""
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    spec = spec_from_loader("ops_table", SourceFileLoader("ops_table", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    page = tmp_path / "ops.md"
    page.write_text(module.PAGE.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def run(table: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["ops_table", *arguments])
    code: int = table.main()
    return code


def test_the_page_is_current(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(table, monkeypatch, "--check") == 0


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (("| `log` | float16 | 0.500 |", "| `log` | float16 | 1.200 |"), "exceeds 1 ulp"),
        (("| `log` | float16 | 0.500 |", "| `ln` | float16 | 0.500 |"), "other operations"),
        (("x > log(largest): largest", "none"), "other operations"),
    ],
)
def test_a_wrong_page_is_noticed_and_rewritten(
    table: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edit: tuple[str, str],
    complaint: str,
) -> None:
    right = table.PAGE.read_text("utf-8")
    assert edit[0] in right
    table.PAGE.write_text(right.replace(*edit), "utf-8")
    assert run(table, monkeypatch, "--check") == 1
    assert complaint in capsys.readouterr().out
    assert run(table, monkeypatch, "--write") == 0
    assert run(table, monkeypatch, "--check") == 0
    assert table.PAGE.read_text("utf-8").startswith(right.partition(table.BEGIN)[0])


def test_a_page_without_markers_is_named(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table.PAGE.write_text("nothing here", "utf-8")
    with pytest.raises(SystemExit, match=r"ops\.md lacks the lines"):
        run(table, monkeypatch, "--check")
