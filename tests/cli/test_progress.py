"""Progress without a terminal, and Ctrl-C: real processes, real signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfguard.cli import bars
from halfguard.cli.bars import Bar, progress

ROOT = Path(__file__).parents[2]
JOB = """
import time
import torch
import halfguard as hg

def slow_loss(model, batch):
    time.sleep(0.05)
    return model(batch).float().square().mean()

def job(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 2)
    batches = [torch.randn(8, 4) for _ in range(STEPS)]
    return hg.Workload(model, slow_loss, batches, torch.optim.SGD(model.parameters(), lr=1e-3))
"""
SPEC = """
name: slow
entry: job.py:job
candidates: [bf16-mixed]
seeds: 2
steps: 10
metric: {name: loss, higher_is_better: false}
"""


def start(folder: Path, *arguments: str, steps: int) -> subprocess.Popen[str]:
    (folder / "job.py").write_text(JOB.replace("STEPS", str(steps)))
    return subprocess.Popen(
        [sys.executable, "-m", "halfguard", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A job in the background may have been started with Ctrl-C switched off, which is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """End the processes that a failing test leaves behind."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), text


@pytest.mark.slow
def test_an_interrupted_study_keeps_its_runs_and_the_next_start_resumes(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    process = start(tmp_path, "validate", "spec.yaml", steps=10)
    started.append(process)
    runs = tmp_path / "runs" / "slow" / "runs"
    until = time.monotonic() + 240
    while not list(runs.glob("*.json")) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=360)
    assert process.returncode == 130, err
    kept = {path: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    assert kept
    assert re.search(r"Interrupted after \d of 5 runs", err), err
    assert "run the same command to resume" in err
    process = start(tmp_path, "validate", "spec.yaml", steps=10)
    started.append(process)
    out, err = process.communicate(timeout=400)
    assert "slow: bf16-mixed" in out, out + err
    assert len(list(runs.glob("*.json"))) == 5
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_lines_are_rare_and_a_short_command_prints_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("probe: step", 10) as bar:
        for _ in range(10):
            bar.advance()
    assert capsys.readouterr().err == ""
    clock = [0.0]
    monkeypatch.setattr("halfguard.cli.bars.time.monotonic", lambda: clock[0])
    bar = Bar("probe: step", 100)
    for second in range(100):
        clock[0] = float(second)
        bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "probe: step: 11 of 100, 0:10",
        "probe: step: 41 of 100, 0:40",
        "probe: step: 71 of 100, 1:10",
    ]


def test_a_long_step_prints_lines_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "FIRST", 0.0)
    with progress("study, runs", 4):
        time.sleep(2.5)
    assert capsys.readouterr().err.splitlines() == ["study, runs: 0 of 4, 0:01"]


def test_a_new_stage_is_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("", alive=False) as bar:
        bar.begin("running the script")
        bar.describe("running the script: step 3")
        bar.begin("tracking step 3")
    assert capsys.readouterr().err.splitlines() == [
        "running the script, 0:00",
        "tracking step 3, 0:00",
    ]
