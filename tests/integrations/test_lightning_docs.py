"""The three-line change of docs/how-to/lightning.md, applied to a stock script that then trains guarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.docs import apply_diff, first_diff
from tests.support.programs import run_python

pytestmark = pytest.mark.slow

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


def test_the_diff_of_the_page_makes_a_stock_script_a_guarded_one(tmp_path: Path) -> None:
    changed = apply_diff(first_diff("docs/how-to/lightning.md"), STOCK, added=3)
    assert "torch.bfloat16" in run_python("-c", STOCK, cwd=tmp_path)  # Lightning on a CPU
    logged = f"import logging, sys\nlogging.basicConfig(stream=sys.stdout)\n{changed}"
    output = run_python("-c", logged, cwd=tmp_path)
    assert "torch.float16" in output
    assert "pass this to the Trainer" not in output
    assert (tmp_path / "runs" / "a" / "steps.jsonl").exists()
