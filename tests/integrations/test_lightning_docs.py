"""The three-line change of docs/how-to/lightning.md, applied to a stock script that then trains guarded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT

STOCK = """
import logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        out = self.layer(batch)
        print("trains in", out.dtype)
        return out.float().square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = Trainer(precision="16-mixed", gradient_clip_val=1.0)
trainer.fit_loop.max_epochs = 1
trainer.fit(Model(), DataLoader([torch.randn(8, 4) for _ in range(3)], batch_size=None))
"""


def run(program: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_diff_of_the_page_makes_a_stock_script_a_guarded_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "lightning.md").read_text()
    found = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert found is not None
    lines = found[1].splitlines()
    assert len(lines) == 3
    removed = [line[1:] for line in lines if line.startswith("-")]
    (imported, added) = [line[1:] for line in lines if line.startswith("+")]
    changed = imported + STOCK.replace(removed[0], added)
    assert changed != imported + STOCK

    assert "torch.bfloat16" in run(STOCK, tmp_path)  # Lightning on a CPU
    assert "torch.float16" in run(changed, tmp_path)
    assert (tmp_path / "runs" / "a" / "steps.jsonl").exists()
