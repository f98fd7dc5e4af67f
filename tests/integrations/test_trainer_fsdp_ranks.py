"""transformers' Trainer and TRL's trainers under FSDP2 on real ranks, alone and with the guard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.step_counts import assert_one_small_collective
from tests.support.models import differences
from tests.support.programs import RANKS, run_ranks

pytestmark = pytest.mark.slow
Run = dict[str, Any]
MODULE = "tests.integrations.trainer_fsdp_ranks"
FAULTS = "tests.integrations.fsdp_faults"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Run]]:
    """Return the runs of SFT on each rank."""
    return ranks_of("sft", tmp_path_factory.mktemp("ranks"))


def ranks_of(kind: str, folder: Path) -> list[dict[str, Run]]:
    run_ranks("transformers", MODULE, str(folder), kind, ACCELERATE_USE_CPU="true")
    return [torch.load(folder / f"{kind}-{rank}.pt", weights_only=True) for rank in range(RANKS)]


def assert_same(one: Run, other: Run) -> None:
    for part in ("model", "optimizer"):
        assert not differences(one[part], other[part])


def check(runs: list[dict[str, Run]]) -> None:
    """Compare the runs of each rank with those of the trainer alone."""
    for rank in runs:
        assert rank["healthy"]["dtypes"] == ["torch.float16"]
        assert rank["healthy"]["counts"] == [4, 0, 0]
        assert_same(rank["stock"], rank["healthy"])
        assert rank["retried"]["counts"] == [4, 4, 0]
        assert_same(rank["fp32"], rank["retried"])
        assert rank["nan"]["counts"] == [3, 0, 1]
        assert_same(rank["without"], rank["nan"])
        assert "added in float16" in rank["strict"]["error"]


def test_runs_under_fsdp2_are_the_trainers_own(runs: list[dict[str, Run]]) -> None:
    check(runs)


@pytest.mark.skipif("RANKS" not in os.environ, reason="takes minutes: scripts/soak sharded_tests")
@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_runs_of_dpo_and_grpo_are_the_trainers_own(kind: str, tmp_path: Path) -> None:
    """They take the same way as SFT, and longer."""
    check(ranks_of(kind, tmp_path))


def test_a_run_that_was_killed_continues_as_if_it_had_not_been(
    runs: list[dict[str, Run]], tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="SIGKILL"):
        run_ranks("transformers", MODULE, str(tmp_path), "kill", ACCELERATE_USE_CPU="true")
    run_ranks("transformers", MODULE, str(tmp_path), "resume", ACCELERATE_USE_CPU="true")
    for number, rank in enumerate(runs):
        resumed = torch.load(tmp_path / f"resumed-{number}.pt", weights_only=True)
        assert resumed["counts"] == [2, 0, 0]  # of that process
        assert_same(rank["healthy"], resumed)


@pytest.mark.parametrize(("optim", "syncs"), [("adamw_torch", 0), ("adamw_torch_fused", 1)])
def test_one_small_collective_a_step_and_no_host_sync_unless_fused(
    runs: list[dict[str, Run]], optim: str, syncs: int
) -> None:
    """The scheduler must know at once whether a step was applied; stock waits only if it is not fused."""
    for rank in runs:
        counts = rank["counts"]
        assert_one_small_collective(counts[f"stock {optim}"], counts[f"healthy {optim}"], syncs)


def test_random_faults_are_decided_alike() -> None:
    """``scripts/soak sharded 200 1 trainer`` runs more of the same."""
    printed = run_ranks("transformers", FAULTS, "2", "7", "trainer", ACCELERATE_USE_CPU="true")
    assert "2 faults, seed 7" in printed
    assert "0 wrong" in printed
