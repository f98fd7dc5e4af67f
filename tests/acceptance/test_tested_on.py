"""scripts/tested_on makes the page from the records, and notices when it is old."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfguard.records.acceptance import AcceptanceRecord
from tests.acceptance.test_page import RECORD

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "tested_on"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the script; its records and its page are copies."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    loader = importlib.machinery.SourceFileLoader("tested_on", str(SCRIPT))
    spec = importlib.util.spec_from_loader("tested_on", loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.RECORDS, module.PAGE = tmp_path / "records", tmp_path / "tested-on.md"
    module.RECORDS.mkdir()
    for path in (ROOT / "benchmarks" / "results" / "acceptance").glob("*.json"):
        (module.RECORDS / path.name).write_text(path.read_text())
    return module


def call(script: Any, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tested_on", *options])
    # The folder of the records is a default argument.
    monkeypatch.setattr(script.read_records, "__defaults__", (script.RECORDS,))
    result: int = script.main()
    return result


def test_the_page_is_that_of_the_records() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_record_is_a_full_run_without_a_failed_check() -> None:
    records = {
        path.name: AcceptanceRecord.from_json(path.read_text())
        for path in (ROOT / "benchmarks" / "results" / "acceptance").glob("*.json")
    }
    devices = {record.device for record in records.values()}
    assert {"cpu", "standin"} <= devices
    for name, record in records.items():
        assert record.size == "full", name
        assert record.passed, f"{name}: {record.failed}"
        assert record.seconds < 15 * 60, name


def test_a_record_that_somebody_sends_is_added(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = tmp_path / "acceptance.json"
    sent.write_text(RECORD.to_json())
    assert "Nobody has run it on a GPU" in script.page(script.read_records(script.RECORDS))
    assert call(script, monkeypatch, "--add", str(sent)) == 0
    page = script.PAGE.read_text()
    assert "Nobody has run it on a GPU" not in page
    assert "| autocast | failed, 0 of 1 |" in page
    assert "Tesla <T4>, lockstep: not run. It needs 2 GPUs." in page
    assert call(script, monkeypatch, "--check") == 0


def test_an_old_page_is_noticed(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(script, monkeypatch) == 0
    script.PAGE.write_text(script.PAGE.read_text().replace("passed", "good", 1))
    assert call(script, monkeypatch, "--check") == 1
    assert "scripts/tested_on" in capsys.readouterr().err


def test_a_quick_run_is_no_proof(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = tmp_path / "quick.json"
    sent.write_text(RECORD.model_copy(update={"size": "small"}).to_json())
    with pytest.raises(SystemExit, match="quick run"):
        call(script, monkeypatch, "--add", str(sent))


def test_ci_checks_the_page_and_the_issue_template_asks_for_the_file() -> None:
    assert "scripts/tested_on --check" in (ROOT / ".ci" / "run").read_text().splitlines()
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "acceptance.yml").read_text()
    assert "halfguard doctor --acceptance" in template
    assert "acceptance.json" in template
