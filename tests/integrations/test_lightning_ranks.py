"""GuardPrecision with DDP on two real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import differences
from tests.support.programs import run_ranks

pytestmark = pytest.mark.slow


def train(who: str, fault: str, accumulate: int, folder: Path) -> list[dict[str, Any]]:
    out = folder / f"{who}-{fault}"
    arguments = (who, fault, str(accumulate), str(out))
    run_ranks("lightning", "tests.integrations.lightning_ranks", *arguments)
    ranks = [torch.load(f"{out}.{rank}", weights_only=True) for rank in range(2)]
    models = [
        {n: v for n, v in r["model"].items() if "running" not in n and "tracked" not in n}
        for r in ranks
    ]
    assert not differences(*models)  # BatchNorm's statistics are each rank's own
    return ranks


@pytest.mark.parametrize("accumulate", [4])  # 1 and 4 in one process: test_lightning.py
def test_a_healthy_run_is_bitwise_lightnings_own(accumulate: int, tmp_path: Path) -> None:
    stock = train("stock", "healthy", accumulate, tmp_path)
    guarded = train("guarded", "healthy", accumulate, tmp_path)
    for one, two in zip(stock, guarded, strict=True):
        assert two["dtypes"] == ["torch.float16"]
        assert two.pop("summary") == [12 // accumulate, 0, 0]
        assert not differences({k: one[k] for k in two}, two)


@pytest.mark.parametrize("accumulate", [4])  # 1 and 4 in one process: test_lightning.py
def test_every_step_retried_is_bitwise_lightnings_fp32(accumulate: int, tmp_path: Path) -> None:
    fp32 = train("fp32", "overflow", accumulate, tmp_path)
    guarded = train("guarded", "overflow", accumulate, tmp_path)
    for one, two in zip(fp32, guarded, strict=True):
        assert two["summary"] == [12 // accumulate, 12 // accumulate, 0]
        for part in ("model", "optimizers", "schedulers"):
            assert not differences(one[part], two[part])


def test_a_nan_batch_on_one_rank_leaves_the_run_without_that_step(tmp_path: Path) -> None:
    without = train("stock", "without", 4, tmp_path)
    guarded = train("guarded", "nan", 4, tmp_path)
    for one, two in zip(without, guarded, strict=True):
        assert two["summary"][2] == 1
        for part in ("model", "optimizers", "schedulers"):
            assert not differences(one[part], two[part])
