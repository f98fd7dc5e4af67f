"""The change of docs/how-to/accelerate.md, applied to the stock loop in examples/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT

# Accelerate leaves FP16 out on a CPU: both scripts get it in the same way.
HALF_ON_CPU = """
import accelerate, torch
made = accelerate.Accelerator.__init__
def init(self, *args, **kwargs):
    made(self, *args, **kwargs)
    self.native_amp, self.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
accelerate.Accelerator.__init__ = init
"""


def run(program: str, folder: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def patched(program: str) -> str:
    page = (ROOT / "docs/how-to/accelerate.md").read_text()
    found = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert found is not None
    added = 0
    for hunk in found[1].split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert program.count(old) == 1, old
        program = program.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        added += sum(line.startswith("+") for line in lines)
    assert added == 3
    return program


@pytest.mark.slow
def test_three_lines_make_the_stock_loop_a_guarded_one(tmp_path: Path) -> None:
    stock = (ROOT / "examples/accelerate_loop.py").read_text().partition("annotations\n")[2]
    assert "model is not finite" in run(HALF_ON_CPU + stock, tmp_path)
    assert "3 of 4 steps, model is finite" in run(HALF_ON_CPU + patched(stock), tmp_path)
    assert (tmp_path / "runs/a/steps.jsonl").exists()
