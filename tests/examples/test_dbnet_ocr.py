"""The fifth example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

import json
import re
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
BARE = ["trainer=fp16", "variant=broken", "trainer.accumulate_grad_batches=1"]
HEALED = [
    "trainer=fp16_healed",
    "variant=broken",
    "exp_name=healed",
    "trainer.accumulate_grad_batches=1",
]
SAFE = ["trainer=fp16_safe", "variant=broken", "exp_name=safe"]
ADVICE = {
    "as it is": [],
    "a higher clip value": ["trainer.gradient_clip_val=10"],
    "more accumulation": ["trainer.accumulate_grad_batches=2"],
    "autocast off around the loss": ["variant=island"],
}
LOGGED = [
    [
        f"trainer={name}",
        f"exp_name={name}",
        f"seed={seed}",
        f"steps={STEPS if seed == 0 else 8}",
        "trainer.accumulate_grad_batches=1",
    ]
    for name in ("fp32", "fp16")
    for seed in range(3)
]


def halfguard(*arguments: str, fails: bool | None = False) -> str:
    """Run a command; return what it printed, on one line. ``fails`` is None if it may."""
    code = (
        f"import sys; from halfguard.cli import main; sys.argv = {['halfguard', *arguments]!r}\n"
        "try: main()\n"
        f"except SystemExit as end: assert {fails} in (None, bool(end.code)), end.code\n"
    )
    return " ".join(run_python("-c", code, cwd=FOLDER, NO_COLOR="1", COLUMNS="200").split())


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dbnet")


@pytest.fixture(scope="module")
def results(out: Path) -> list[dict[str, Any]]:
    """Results of the advised runs, of those to compare, of the healed and of the guarded one."""
    runs = [*([*BARE, *change] for change in ADVICE.values()), *LOGGED, HEALED, SAFE]
    common = [f"out={out}"]
    runs = [run if any("steps=" in r for r in run) else [*run, f"steps={STEPS}"] for run in runs]
    told = run_python("-c", RUNNER, json.dumps([common + run for run in runs]), cwd=FOLDER)
    lines = [line.removeprefix("RESULT ") for line in told.splitlines() if "RESULT " in line]
    return [json.loads(line) for line in lines]


def test_probe_is_the_first_to_see_it() -> None:
    assert "No problems in" in halfguard("lint", ".")
    told = halfguard("doctor", "workload.py:broken", "--precision", "fp16-mixed", fails=None)
    assert set(re.findall(r"HD\d+", told)) <= {"HD004"}  # some processors are slow in half
    told = halfguard("probe", "workload.py:broken", "--steps", "20", fails=True)
    assert "HG601 pow at model.py:" in told
    assert "in focal, overflows FP16" in told


def test_what_circulated_does_not_help(results: list[dict[str, Any]]) -> None:
    for change, result in zip(ADVICE, results, strict=False):
        assert result["applied"] < STEPS - 6, change
        assert result["scale"] < 2.0**10, change


def test_the_cured_loss_and_the_way_back_take_every_step(results: list[dict[str, Any]]) -> None:
    applied = [result["applied"] for result in results[len(ADVICE) : -2]]
    assert applied[:3] == [STEPS, 8, 8]  # trainer=fp32
    assert applied[3] >= STEPS - 3  # but those that find the loss scale


@pytest.mark.parametrize("metric", ["train/loss", "grad/norm"])
def test_logged_runs_are_compared(results: list[dict[str, Any]], out: Path, metric: str) -> None:
    sides = [f"{out}/wandb:group={name}" for name in ("fp32", "fp16")]
    options = ("--metric", metric, "--at", "tail", "--lower-is-better", "--json")
    told = json.loads(halfguard("compare", *sides, *options, fails=None))
    assert told["verdict"]["comparisons"][0]["pairs"] == 3


def test_heal_keeps_the_focal_loss_in_fp32(results: list[dict[str, Any]], out: Path) -> None:
    assert results[-2]["applied"] == STEPS
    plan = (out / "healed" / "halfguard" / "plan.yaml").read_text()
    assert "module: focal" in plan
    rows = (out / "healed" / "halfguard" / "steps.jsonl").read_text().splitlines()
    healing = next(i for i, row in enumerate(rows) if json.loads(row).get("kind") == "healing")
    assert not any(
        "retry_fp32" in row for row in rows[healing + 2 :]
    )  # after the step that led to it


def test_replay_of_a_guarded_run_names_the_loss(results: list[dict[str, Any]], out: Path) -> None:
    assert results[-1]["applied"] == STEPS
    incident = next((out / "safe" / "halfguard" / "incidents").iterdir())
    told = halfguard("replay", str(incident), fails=None)
    assert (
        "pow returned the first NaN or Inf, in module focal. Fix: compute module focal in FP32."
        in told
    )
    assert "the whole step in bf16-mixed bad" in told
