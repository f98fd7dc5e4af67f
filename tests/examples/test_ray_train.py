"""examples/ray_train.py with real Ray workers."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.support.docs import ROOT
from tests.support.models import differences
from tests.support.programs import captured

pytestmark = pytest.mark.slow


@pytest.mark.alone  # Ray starts a dozen processes, and waits for each of them
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_two_workers_skip_the_bad_step_of_one_and_stay_equal(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    result = captured(sys.executable, "examples/ray_train.py", tmp_path, env=env)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "11 of 12 steps applied, in ['torch.float16']" in result.stdout
    folder = Path(result.stdout.split("checkpoint: ")[1].strip())
    one, other = (
        torch.load(folder / f"worker-{rank}.pt", weights_only=True)["model"] for rank in (0, 1)
    )
    assert not differences(one, other)
    assert all(value.isfinite().all() for value in one.values())
    rows = [json.loads(line) for line in (tmp_path / "guard/steps.jsonl").read_text().splitlines()]
    (skipped,) = [row for row in rows if row.get("cause") == "bad_batch"]
    assert (skipped["step"], skipped["action"], skipped["ranks"]) == (6, "skip", [1])
