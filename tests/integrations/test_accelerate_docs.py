"""The change of docs/how-to/accelerate.md, applied to the stock loop in examples/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs import ROOT, apply_diff, first_diff
from tests.support.programs import run_python

pytestmark = pytest.mark.slow

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
    return run_python("-c", HALF_ON_CPU + program, cwd=folder, ACCELERATE_USE_CPU="true")


def test_three_lines_make_the_stock_loop_a_guarded_one(tmp_path: Path) -> None:
    stock = (ROOT / "examples/accelerate_loop.py").read_text().partition("annotations\n")[2]
    assert "model is not finite" in run(stock, tmp_path)
    changed = apply_diff(first_diff("docs/how-to/accelerate.md"), stock, added=3)
    assert "3 of 4 steps, model is finite" in run(changed, tmp_path)
    assert (tmp_path / "runs/a/steps.jsonl").exists()
