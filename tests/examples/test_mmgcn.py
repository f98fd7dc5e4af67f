"""The second example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.docs import ROOT
from tests.support.programs import run_python

pytestmark = pytest.mark.slow
FOLDER = ROOT / "examples" / "mmgcn"


def train(variant: str, *changes: str) -> tuple[int, float]:
    """Return the steps that were repeated in FP32, of 40, and the recall."""
    changes = (f"variant={variant}", "steps=40", "run_dir=null", *changes)
    told = run_python("train.py", "overall.yaml", *changes, cwd=FOLDER)
    retried, recall = re.search(r"(\d+) of them retried", told), re.search(r"recall ([\d.]+)", told)
    assert retried is not None
    assert recall is not None
    return int(retried[1]), float(recall[1])


@pytest.mark.parametrize("variant", ["broken", "epsilon"])
def test_an_epsilon_changes_nothing(variant: str) -> None:
    retried, recall = train(variant)
    assert retried > 20
    assert recall < 0.05  # the embeddings are not trained


def test_the_cured_loss_needs_no_repeats_but_to_find_the_scale() -> None:
    retried, recall = train("cured")
    assert retried <= 2
    assert recall > 0.05
    assert train("cured", "use_amp=false")[0] == 0


def test_replay_recommends_logsigmoid(tmp_path: Path) -> None:
    changes = ("variant=epsilon", "steps=1", f"run_dir={tmp_path}")
    run_python("train.py", "overall.yaml", *changes, cwd=FOLDER)
    incident = str(tmp_path / "incidents" / "000000-r0")
    told = run_python("-m", "halfguard", "replay", incident, "--json", cwd=FOLDER)
    assert "logsigmoid" in json.dumps(json.loads(told)["cure"])
