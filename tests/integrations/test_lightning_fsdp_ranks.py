"""Lightning's ModelParallelStrategy with FSDP2 on real ranks, alone and with the guard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.step_counts import assert_one_small_collective
from tests.support.models import differences
from tests.support.programs import RANKS, run_ranks

pytestmark = pytest.mark.slow
accumulations = pytest.mark.parametrize("accumulate", [1, 4])
Rank = dict[str, dict[str, Any]]
MODULE = "tests.integrations.lightning_fsdp_ranks"
FAULTS = "tests.integrations.fsdp_faults"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.raises(AssertionError, match="SIGKILL"):  # the end of the last case
        run_ranks("lightning", MODULE, str(folder))
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Rank]:
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_same_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "optimizer", "schedule"):
        assert not differences(one[part], other[part])


@accumulations
def test_a_healthy_run_is_lightnings_own(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded healthy {accumulate}"]
        assert guarded["dtypes"] == ["torch.float16"]
        assert guarded["counts"] == [12 // accumulate, 0, 0]
        assert_same_run(rank[f"stock healthy {accumulate}"], guarded)


@accumulations
def test_every_step_retried_is_lightnings_own_in_fp32(ranks: list[Rank], accumulate: int) -> None:
    """The strategy reduces the gradients of every micro-batch, and so does a repeat."""
    for rank in ranks:
        guarded = rank[f"guarded overflow {accumulate}"]
        assert guarded["counts"] == [12 // accumulate, 12 // accumulate, 0]
        assert_same_run(rank[f"fp32 overflow {accumulate}"], guarded)


def test_a_nan_batch_of_one_rank_leaves_no_trace_on_any(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert rank["guarded nan 1"]["counts"] == [11, 0, 1]
        assert rank["guarded nan 4"]["counts"] == [2, 0, 1]
        assert_same_run(rank["stock without 4"], rank["guarded nan 4"])  # of a whole window


def test_a_run_that_was_killed_continues_as_if_it_had_not_been(
    folder: Path, ranks: list[Rank]
) -> None:
    run_ranks("lightning", MODULE, str(folder), "resume")
    for number, rank in enumerate(ranks):
        resumed = torch.load(folder / f"resumed-{number}.pt", weights_only=True)
        assert resumed["counts"] == [12, 0, 0]  # those of the checkpoint are in them
        assert_same_run(rank["guarded healthy 1"], resumed)


def test_a_strict_guard_begins_no_run_that_is_not_as_declared(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert "added in float16" in rank["strict"]["error"]


def test_one_small_collective_a_step_and_no_host_sync(ranks: list[Rank]) -> None:
    for rank in ranks:
        stock, guarded = (rank[f"counts {who}"]["steps"] for who in ("stock", "guarded"))
        assert_one_small_collective(stock, guarded)


def test_random_faults_are_decided_alike() -> None:
    """``scripts/soak sharded 200 1 lightning`` runs more of the same."""
    printed = run_ranks("lightning", FAULTS, "2", "7", "lightning", ACCELERATE_USE_CPU="true")
    assert "2 faults, seed 7" in printed
    assert "0 wrong" in printed
