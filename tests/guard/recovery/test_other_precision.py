"""A run that is resumed in another precision, as ``precision: auto`` may choose on another card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from halfguard.guard.guard import Guard
from tests.support.models import batches, loss_fn

pytestmark = pytest.mark.usefixtures("seed")


def started(precision: str, run_dir: Path) -> Guard:
    torch.manual_seed(0)
    model = nn.Linear(12, 4)
    recovery = {"store": "disk", "every": 2}
    config = {"precision": precision, "recovery": recovery, "scale": {"init": 1024.0}}
    return Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), config, run_dir=run_dir)


@pytest.mark.parametrize(
    ("before", "after", "scale"),
    [("bf16-mixed", "fp16-mixed", 1024.0), ("fp16-mixed", "bf16-mixed", 1.0)],
)
def test_it_has_its_own_scale_and_keeps_its_precision(
    before: str, after: str, scale: float, tmp_path: Path
) -> None:
    first = started(before, tmp_path)
    for batch in batches(7):
        first.step(loss_fn, batch)
    first.close()
    resumed = started(after, tmp_path)
    assert resumed.resume()
    assert resumed.step_index == 6
    assert resumed.config.precision == after
    assert resumed.step(loss_fn, batches(1)[0]).scale == scale
    assert resumed._recovery.state_dict()["base"]["precision"] == after
