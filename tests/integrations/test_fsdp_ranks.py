"""Accelerate with FSDP2 on real ranks, alone and with the guard; killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.step_counts import assert_one_small_collective
from tests.support.models import differences
from tests.support.programs import RANKS, run_ranks

pytestmark = pytest.mark.slow
accumulations = pytest.mark.parametrize("accumulate", [1, 3])
MODULE = "tests.integrations.fsdp_ranks"
Rank = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.raises(AssertionError, match="SIGKILL"):  # the end of the last case
        run_ranks("transformers", MODULE, str(folder), ACCELERATE_USE_CPU="true")
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Rank]:
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_same_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "optimizer", "schedule"):
        assert not differences(one[part], other[part])


@accumulations
def test_a_healthy_run_is_accelerates_own(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded none {accumulate}"]
        assert guarded["dtypes"] == ["torch.float16"]
        assert guarded["counts"] == [0, 0]
        stock = rank[f"stock none {accumulate}"]
        assert stock["rates"] == guarded["rates"]
        assert_same_run(stock, guarded)


@accumulations
def test_every_step_retried_is_accelerates_own_in_fp32(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded overflow {accumulate}"]
        assert guarded["counts"] == [6, 0]
        assert_same_run(rank[f"fp32 overflow {accumulate}"], guarded)


@accumulations
def test_a_nan_batch_of_one_rank_leaves_no_trace_on_any(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        guarded = rank[f"guarded nan {accumulate}"]
        assert guarded["counts"] == [0, 1]
        assert_same_run(rank[f"stock without {accumulate}"], guarded)


@accumulations
def test_an_overflow_on_one_rank_is_decided_by_all(ranks: list[Rank], accumulate: int) -> None:
    for rank in ranks:
        assert rank[f"guarded large {accumulate}"]["counts"] == [1, 0]
        assert rank[f"skipping large {accumulate}"]["counts"] == [0, 1]


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_one_small_collective_a_step_and_no_host_sync(
    ranks: list[Rank], max_norm: float | None
) -> None:
    for rank in ranks:
        stock, guarded = (rank[f"counts {who} {max_norm}"] for who in ("stock", "guarded"))
        assert_one_small_collective(stock, guarded)


def test_a_strict_guard_begins_no_run_that_is_not_as_declared(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert "added in float16" in rank["strict"]


def test_a_run_that_was_killed_continues_as_if_it_had_not_been(
    folder: Path, ranks: list[Rank]
) -> None:
    run_ranks("transformers", MODULE, str(folder), "resume", ACCELERATE_USE_CPU="true")
    for number, rank in enumerate(ranks):
        resumed = torch.load(folder / f"resumed-{number}.pt", weights_only=True)["resumed"]
        whole = rank["guarded large 1"]
        if number:  # Accelerate saves the buffers of the first rank only
            del resumed["model"]["seen"], whole["model"]["seen"]
        assert_same_run(whole, resumed)
        assert whole["rates"][3:] == resumed["rates"]
        assert resumed["counts"] == whole["counts"]  # those of the checkpoint are in them


def test_random_faults_are_decided_alike() -> None:
    """``scripts/soak sharded`` runs more of the same."""
    module = "tests.integrations.fsdp_faults"
    printed = run_ranks("transformers", module, "10", "7", ACCELERATE_USE_CPU="true")
    assert "0 wrong" in printed
