"""A skipped step, logged by ``Guard(log=...)``, is found again with the reader of each real tracker."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfguard.guard.metrics_log import METRICS
from tests.integrations.tracked_run import BAD_STEP, TRACKERS
from tests.support.docs import ROOT

pytestmark = pytest.mark.slow

PACKAGES = {"lightning": "tensorboard", "lightning_csv": "lightning", "accelerate": "tensorboard"}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_skipped_step_is_found_in_what_the_tracker_wrote(tracker: str, tmp_path: Path) -> None:
    package = PACKAGES.get(tracker, tracker)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "tests.integrations.tracked_run", tracker, str(tmp_path)]
    # A home of its own: trackers keep settings, caches and the name of the last run there.
    env = os.environ | {
        "HOME": str(tmp_path),
        "WANDB_SILENT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "1",
    }
    run = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=720, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "the function passed as log raised" not in run.stderr
    rows = json.loads(run.stdout.splitlines()[-1])
    assert list(rows) == ["0", "5", str(BAD_STEP), "10"]
    assert all(set(row) == set(METRICS) for row in rows.values())
    bad, last = rows[str(BAD_STEP)], rows["10"]
    assert math.isnan(bad["halfguard/loss"])
    assert (bad["halfguard/applied"], bad["halfguard/applied_steps"]) == (0, BAD_STEP)
    assert bad["halfguard/skipped/bad_batch"] == bad["halfguard/skipped_steps"] == 1
    assert (last["halfguard/applied"], last["halfguard/scale"]) == (1, 1024)
    assert last["halfguard/loss"] > 0
