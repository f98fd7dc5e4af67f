"""Frameworks on real ranks, under DDP and FSDP2: alone and with the guard, killed and resumed.

A test is one launch with all that is checked of it, because starting ranks takes longest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.step_counts import assert_one_small_collective
from tests.support.models import differences
from tests.support.programs import RANKS, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.all_cells]
Rank = dict[str, Any]
OWN_OF_A_RANK = ("running", "tracked", "norm.")  # statistics of BatchNorm


@dataclass(frozen=True)
class Launch:
    """A module that trains on ranks, and the steps of its runs by their accumulation."""

    module: str
    how: str
    steps: dict[int, int]
    # The run that is also killed and resumed, and what is counted then.
    killed: str = ""
    counts: tuple[int, ...] = ()

    def run(self, folder: Path, how: str, *, is_killed: bool = False) -> list[Rank]:
        """Run the module; return what each rank has saved."""
        group = "lightning" if "lightning" in self.module else "transformers"
        arguments = (group, f"tests.integrations.{self.module}", str(folder), how)
        if is_killed:
            with pytest.raises(AssertionError, match="SIGKILL"):
                run_ranks(*arguments, ACCELERATE_USE_CPU="true")
        else:
            run_ranks(*arguments, ACCELERATE_USE_CPU="true")
        saved = [folder / f"{how}-{rank}.pt" for rank in range(RANKS)]
        return [torch.load(file, weights_only=True) for file in saved if file.exists()]


DDP = {
    "accelerate": Launch("accelerate_ranks", "ddp", {1: 6, 3: 6}),
    "lightning": Launch("lightning_ranks", "ddp", {1: 12, 4: 3}),
    "trainer": Launch("trainer_ranks", "ddp", {1: 4}),
}
FSDP = {
    # Those of the checkpoint are in the counts; the Trainer's are those of that process.
    "accelerate": Launch("accelerate_ranks", "fsdp", {1: 6, 3: 6}, "large 1", (6, 1, 0)),
    "lightning": Launch("lightning_ranks", "fsdp", {1: 12, 4: 3}, "healthy 1", (12, 0, 0)),
    "sft": Launch("trainer_ranks", "sft", {1: 4}, "healthy 1", (2, 0, 0)),
}


def assert_same_run(one: Rank, other: Rank) -> None:
    for part in ("model", "optimizer", "schedule"):
        assert not differences(one.get(part), other.get(part)), part


def check_runs(ranks: list[Rank], steps: dict[int, int]) -> None:
    """Compare the guarded runs of each rank with those of the framework alone."""
    assert len(ranks) == RANKS
    for rank in ranks:
        for accumulate, count in steps.items():
            names = ("healthy", "retried", "nan", "stock")
            healthy, retried, nan, stock = (rank[f"{name} {accumulate}"] for name in names)
            assert healthy["dtypes"] == ["torch.float16"]
            assert healthy["counts"] == [count, 0, 0]
            assert stock.get("rates") == healthy.get("rates")
            assert_same_run(stock, healthy)
            assert retried["counts"] == [count, count, 0]
            assert_same_run(rank[f"fp32 {accumulate}"], retried)
            assert nan["counts"] == [count - 1, 0, 1]
            assert_same_run(rank[f"without {accumulate}"], nan)


def check_collectives(rank: Rank) -> None:
    """One small collective a step, and no host sync unless the Trainer's optimizer is fused.

    Its scheduler must know at once whether a step was applied; stock waits only if it is not fused.
    """
    compared = [run for run in rank if run.startswith("counts stock")]
    assert compared
    for run in compared:
        guarded = rank[run.replace("stock", "guarded")]
        assert_one_small_collective(rank[run], guarded, int(run.endswith("fused")))


def check_resumed(launch: Launch, ranks: list[Rank], folder: Path) -> None:
    """A run that was killed continues as if it had not been."""
    for number, resumed_rank in enumerate(launch.run(folder, "resume")):
        whole, resumed = ranks[number][launch.killed], resumed_rank["resumed"]
        assert resumed["counts"] == list(launch.counts)
        if launch.module == "accelerate_ranks":
            assert whole["rates"][3:] == resumed["rates"]
            if number:  # Accelerate saves the buffers of the first rank only
                del resumed["model"]["seen"], whole["model"]["seen"]
        assert_same_run(whole, resumed)


@pytest.mark.parametrize("name", DDP)
def test_runs_under_ddp_are_the_frameworks_own(name: str, tmp_path: Path) -> None:
    first, *others = ranks = DDP[name].run(tmp_path, "ddp")
    check_runs(ranks, DDP[name].steps)
    for run, state in first.items():
        for other in others:
            one, two = (
                {k: v for k, v in held["model"].items() if not any(o in k for o in OWN_OF_A_RANK)}
                for held in (state, other[run])
            )
            assert one
            assert not differences(one, two), "ranks hold the same weights"


@pytest.mark.parametrize("name", FSDP)
def test_runs_under_fsdp2_are_the_frameworks_own(name: str, tmp_path: Path) -> None:
    launch = FSDP[name]
    ranks = launch.run(tmp_path, launch.how, is_killed=name != "sft")
    check_runs(ranks, launch.steps)
    for rank in ranks:
        assert "added in float16" in rank["strict"], "a run that is not as declared does not begin"
        check_collectives(rank)
    if name == "sft":
        launch.run(tmp_path, "kill", is_killed=True)
    check_resumed(launch, ranks, tmp_path)
    if name == "accelerate":  # an overflow on one rank is decided by all
        for rank in ranks:
            for accumulate in launch.steps:
                assert rank[f"large {accumulate}"]["counts"] == [6, 1, 0]
                assert rank[f"large, skipped {accumulate}"]["counts"] == [5, 0, 1]


@pytest.mark.skipif("RANKS" not in os.environ, reason="takes minutes: scripts/soak sharded_tests")
@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_runs_of_dpo_and_grpo_under_fsdp2_are_the_trainers_own(kind: str, tmp_path: Path) -> None:
    """They take the same way as SFT, and longer."""
    launch = Launch("trainer_ranks", kind, {1: 4})
    ranks = launch.run(tmp_path, kind)
    check_runs(ranks, launch.steps)


FAULTS = [("accelerate", 10), ("trainer", 2), ("lightning", 2)]


@pytest.mark.parametrize(("framework", "count"), FAULTS)
def test_random_faults_under_fsdp2_are_decided_alike(framework: str, count: int) -> None:
    """``scripts/soak sharded 200 1 FRAMEWORK`` runs more of the same."""
    group = "lightning" if framework == "lightning" else "transformers"
    arguments = ("tests.integrations.fsdp_faults", str(count), "7", framework)
    printed = run_ranks(group, *arguments, ACCELERATE_USE_CPU="true")
    assert f"{count} faults, seed 7" in printed
    assert "0 wrong" in printed
