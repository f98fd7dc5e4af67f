"""transformers' Trainer under DDP on two ranks: as on one, bit for bit its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.models import differences
from tests.support.programs import run_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_agree_and_are_the_trainers_own(tmp_path: Path) -> None:
    run_ranks("transformers", "tests.integrations.trainer_ranks", str(tmp_path))

    def load(name: str, rank: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(tmp_path / f"{name}-{rank}.pt", weights_only=True)
        return found

    counts = {name: load(name).pop("counts") for name in ("healthy", "retried", "nan")}
    assert counts == {"healthy": [2, 0, 0], "retried": [2, 2, 0], "nan": [2, 0, 1]}
    for name, own in (("healthy", "stock"), ("retried", "fp32"), ("nan", "stock")):
        for part in ("model", "optimizer"):
            assert not differences(load(own)[part], load(name)[part]), name
            parameters = {k: v for k, v in load(name)[part].items() if "running" not in str(k)}
            others = {k: v for k, v in load(name, 1)[part].items() if "running" not in str(k)}
            assert not differences(parameters, others), name
