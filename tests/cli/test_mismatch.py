"""``halfguard mismatch``: exit code, page and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from halfguard.cli import mismatch as command
from halfguard.records.mismatch import MismatchReport
from tests.cli.command_result import Run
from tests.rollouts.small_policy import Policy, rollouts

pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return rollouts of a policy that is loaded by any name."""
    model = Policy()
    monkeypatch.setattr(command, "_load", lambda *_: model)
    path = tmp_path / "rollouts.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt_ids": r.prompt, "completion_ids": r.completion, "rollout_logprobs": r.logprobs}
        for r in rollouts(model, temperature=0.8)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_rounding_exits_with_0(halfguard: Run, file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = halfguard("mismatch", "policy", file, "--temperature", "0.8", "--html", page)
    assert done.exit_code == 0
    assert "rounding explains the mismatch" in done.out
    assert "Lines with the largest rounding errors" in page.read_text()


def test_a_cause_exits_with_1(halfguard: Run, file: Path) -> None:
    done = halfguard("mismatch", "policy", file, "--json", "--most", "4")
    assert done.exit_code == 1
    report = MismatchReport.from_json(done.out)
    assert (report.sequences, [one.kind for one in report.causes]) == (4, ["temperature"])


def test_a_file_that_is_missing_is_a_usage_error(halfguard: Run, tmp_path: Path) -> None:
    done = halfguard("mismatch", "policy", tmp_path / "none.jsonl")
    assert done.exit_code == 2
    assert "cannot be read" in done.err
