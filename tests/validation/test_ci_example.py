"""The ready-made workflow: what it promises about resuming is what GitHub's cache does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

WORKFLOW = Path(__file__).parents[2] / "examples/ci/halfguard-validate.yml"


def steps() -> list[dict[str, Any]]:
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]["validate"]["steps"]


def test_finished_runs_are_kept_when_the_job_fails() -> None:
    uses = [step.get("uses", "").partition("@")[0] for step in steps()]
    assert "actions/cache" not in uses  # it saves only if the job succeeds
    restore, save = (steps()[uses.index(f"actions/cache/{what}")] for what in ("restore", "save"))
    study = next(i for i, step in enumerate(steps()) if "halfguard validate" in step.get("run", ""))
    assert uses.index("actions/cache/restore") < study < uses.index("actions/cache/save")
    assert save["if"] == "always()"
    assert {key: save["with"][key] for key in ("path", "key")} == {
        key: restore["with"][key] for key in ("path", "key")
    }
    assert "github.run_attempt" in save["with"]["key"]  # a key is written once
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])


def test_a_study_without_a_report_does_not_break_the_summary(tmp_path: Path) -> None:
    (told,) = (step["run"] for step in steps() if "GITHUB_STEP_SUMMARY" in step.get("run", ""))
    summary = tmp_path / "summary"
    environment = os.environ | {"GITHUB_STEP_SUMMARY": str(summary)}
    for text in ("", "# ocr: PASS"):
        if text:
            (tmp_path / "runs/validate").mkdir(parents=True)
            (tmp_path / "runs/validate/report.md").write_text(text)
        subprocess.run(["bash", "-e", "-c", told], cwd=tmp_path, env=environment, check=True)
        assert (summary.read_text() if summary.exists() else "") == text
