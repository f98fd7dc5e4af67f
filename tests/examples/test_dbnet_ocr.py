"""The fifth example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.docs import ROOT
from tests.support.programs import run_python

pytestmark = pytest.mark.slow
FOLDER = ROOT / "examples" / "dbnet_ocr"
STEPS = 24
# Each run is a list of Hydra's overrides; all of them in one process, because importing takes longer.
RUNNER = """
import json, os, sys
os.environ["WANDB_SILENT"] = "true"
from hydra import compose, initialize_config_dir
from train import train
with initialize_config_dir(os.path.abspath("conf"), version_base="1.3"):
    for run in json.loads(sys.argv[1]):
        print("RESULT", json.dumps(train(compose("config", run))))
"""
ADVICE = {
    "as it is": [],
    "a higher clip value": ["trainer.gradient_clip_val=10"],
    "more accumulation": ["trainer.accumulate_grad_batches=4"],
    "half the learning rate": ["lr=0.005"],
    "autocast off around the loss": ["variant=island"],
}


def halfguard(*arguments: str, fails: bool = False) -> str:
    code = (
        f"import sys; from halfguard.cli import main; sys.argv = {['halfguard', *arguments]!r}\n"
        "try: main()\n"
        f"except SystemExit as end: assert bool(end.code) is {fails}, end.code\n"
    )
    return " ".join(run_python("-c", code, cwd=FOLDER, NO_COLOR="1", COLUMNS="200").split())


def train(out: Path, *runs: list[str]) -> list[dict[str, Any]]:
    common = [f"out={out}", f"steps={STEPS}"]
    told = run_python("-c", RUNNER, json.dumps([common + run for run in runs]), cwd=FOLDER)
    lines = [line.removeprefix("RESULT ") for line in told.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in lines]


def test_probe_is_the_first_to_see_it() -> None:
    assert "Nothing found." in halfguard("lint", ".")
    assert "No findings." in halfguard("doctor", "workload.py:broken", "--precision", "fp16-mixed")
    told = halfguard("probe", "workload.py:broken", "--steps", "20", fails=True)
    assert "HG609 pow at model.py:" in told
    assert "in focal, leaves the range of FP16" in told


def test_what_circulated_does_not_help(tmp_path: Path) -> None:
    bare = ["trainer=fp16", "variant=broken"]
    *advised, fp32, cured = train(
        tmp_path,
        *([*bare, *change] for change in ADVICE.values()),
        ["trainer=fp32", "variant=broken"],
        ["trainer=fp16", "variant=cured"],
    )
    assert fp32["applied"] == STEPS
    assert cured["applied"] >= STEPS - 3  # those that find the loss scale
    for change, result in zip(ADVICE, advised, strict=True):
        assert result["applied"] < STEPS - 6, change
        assert result["scale"] < 2.0**10, change


def test_replay_of_a_guarded_run_names_the_loss(tmp_path: Path) -> None:
    (result,) = train(tmp_path, ["trainer=fp16_safe", "variant=broken", "exp_name=safe"])
    assert result["applied"] == STEPS
    incident = next((tmp_path / "safe" / "halfguard" / "incidents").iterdir())
    told = halfguard("replay", str(incident), fails=True)
    assert "pow" in told
    assert "focal" in told
