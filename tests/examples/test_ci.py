"""The ready CI job: its own lines, run in a shell, fail as they should and leave what the job uploads."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.programs import captured

JOB = Path(__file__).parents[2] / "examples" / "ci" / "halfguard-validate.yml"
SPEC = """
name: ocr
command: {python} job.py {{precision}} {{seed}} {{out}}
candidates: [fp16-mixed]
seeds: 3
metric: {{name: h_mean, higher_is_better: true}}
"""
SCRIPT = """
import json, sys
precision, seed, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
value = 0.88 + 0.001 * seed
if precision != "fp32":
    value *= 0.882 - 0.0005 * (-1) ** seed
json.dump({"h_mean": value}, open(out, "w"))
"""


def steps() -> list[dict[str, Any]]:
    job = yaml.safe_load(JOB.read_text())
    found: list[dict[str, Any]] = job["jobs"]["validate"]["steps"]
    return found


@pytest.mark.slow
def test_a_loss_fails_the_job_and_its_report_is_kept(tmp_path: Path) -> None:
    (tmp_path / "validate.yaml").write_text(SPEC.format(python=sys.executable))
    (tmp_path / "job.py").write_text(SCRIPT)
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    summary = tmp_path / "summary.md"
    environment = {"PATH": binaries, "GITHUB_STEP_SUMMARY": str(summary)}
    lines = [step["run"] for step in steps() if "run" in step and "pip" not in step["run"]]
    done = [captured("bash", "-c", line, cwd=tmp_path, env=environment) for line in lines]
    assert [result.returncode for result in done] == [1, 0], done[0].stdout + done[0].stderr
    assert summary.read_text().startswith("# ocr: fp16-mixed FAILS on h\\_mean")
    (upload,) = [step for step in steps() if "upload-artifact" in step.get("uses", "")]
    missing = [path for path in upload["with"]["path"].split() if not (tmp_path / path).is_file()]
    assert not missing


def test_summary_and_upload_happen_whatever_the_verdict() -> None:
    after = [step for step in steps() if "report" in str(step.get("run", step.get("with", "")))]
    assert len(after) == 2
    assert {step.get("if") for step in after} == {"always()"}
