"""Accelerate with DDP on two real ranks, alone and with the guard."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.models import differences
from tests.support.programs import run_ranks

pytestmark = pytest.mark.slow
accumulations = pytest.mark.parametrize("accumulate", [1, 4])
Rank = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Rank]:
    folder = tmp_path_factory.mktemp("ranks")
    module = "tests.integrations.accelerate_ranks"
    run_ranks("transformers", module, str(folder), ACCELERATE_USE_CPU="true")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def assert_same_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "optimizer", "schedule"):
        assert not differences(one[part], other[part])


@accumulations
def test_a_healthy_run_is_accelerates_own(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        stock, guarded = rank[f"stock none {accumulate}"], rank[f"guarded none {accumulate}"]
        assert guarded["dtypes"] == ["torch.float16"]
        assert guarded["counts"] == [0, 0]
        assert stock["rates"] == guarded["rates"]
        assert_same_run(stock, guarded)


@accumulations
def test_every_step_retried_is_accelerates_own_in_fp32(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded overflow {accumulate}"]
        assert guarded["counts"] == [4, 0]
        assert_same_run(rank[f"fp32 overflow {accumulate}"], guarded)


@accumulations
def test_a_nan_batch_of_one_rank_leaves_no_trace_on_any(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded nan {accumulate}"]
        assert guarded["counts"] == [0, 1]
        assert_same_run(rank[f"stock without {accumulate}"], guarded)


def test_ranks_hold_the_same_weights(ranks: list[Rank]) -> None:
    for name in ranks[0]:
        weights = [
            {k: v for k, v in rank[name]["model"].items() if "norm." not in k} for rank in ranks
        ]
        assert not differences(*weights)
