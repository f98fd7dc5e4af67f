"""Comparing a checkout with itself finds nothing; comparing it with a changed copy names the change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs import ROOT
from tests.support.programs import captured

PATTERN = "conv/*/rollback-disk"  # journal, incidents and snapshots
RUNS = {"conv/default/rollback-disk", "conv/fp16_safe/rollback-disk"}


def compare(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    options = ["--json", "--steps", "20", "--runs", PATTERN]
    script = ("-m", "benchmarks.compare_checkouts")
    return captured(sys.executable, *script, old, new, *options)


def differences(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {row["run"]: row["difference"] for row in json.loads(result.stdout)["runs"]}


@pytest.mark.slow
def test_a_checkout_is_equal_to_itself() -> None:
    result = compare(ROOT, ROOT)
    assert result.returncode == 0, result.stderr
    assert differences(result) == dict.fromkeys(RUNS)


@pytest.mark.slow
def test_a_planted_difference_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    [preset] = (tmp_path / "src").rglob("fp16_safe.yaml")
    text = preset.read_text("utf-8")
    assert "sigma: 6.0" in text
    preset.write_text(text.replace("sigma: 6.0", "sigma: 6.5"), "utf-8")
    result = compare(ROOT, tmp_path)
    assert result.returncode == 1, result.stderr
    found = differences(result)
    assert found.keys() == RUNS
    assert found["conv/default/rollback-disk"] is None
    assert found["conv/fp16_safe/rollback-disk"]["item"] == "guard, recovery.base.spike.sigma"
    assert f"recovery.base.spike.sigma: {(6.0).hex()} != {(6.5).hex()}" in result.stderr


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    result = compare(ROOT, tmp_path)
    assert result.returncode == 2
    assert "is not a checkout" in result.stderr
