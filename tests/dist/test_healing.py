"""Ranks heal together: the same island before the same step, and their weights stay equal bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dist import healing_jobs
from tests.support.models import differences
from tests.support.ranks import Group


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_all_ranks_make_the_same_island(
    ranks: Group, engine: healing_jobs.Engine, checkpointed: bool, tmp_path: Path
) -> None:
    answers = ranks(2).run(healing_jobs.heal, engine, str(tmp_path), 18, checkpointed)
    (actions, islands, plan, memory, weights), (others, *rest, last) = answers
    assert actions == others
    assert [islands, plan, memory] == rest
    assert not differences(weights, last)
    assert actions.count("retry_fp32") == 3
    assert islands == ["block.square"]
    assert plan == ("block.square",)


@pytest.mark.parametrize("stop", [7, 12])  # with two failures counted, and after the healing
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_stop_and_resume_is_bitwise(ranks: Group, engine: healing_jobs.Engine, stop: int) -> None:
    for (whole, islands), (resumed, others) in ranks(2).run(
        healing_jobs.stop_and_resume, engine, 15, stop
    ):
        assert islands == others == ["block.square"]
        assert not differences(whole, resumed)


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_an_outer_island_stays_right_when_the_inner_one_is_taken_back(
    ranks: Group, engine: healing_jobs.Engine
) -> None:
    for nested, at_once in ranks(2).run(healing_jobs.nest, engine):
        assert nested["loss"].isfinite()
        assert not differences(nested, at_once)


def test_half_weights_under_ddp_are_refused(ranks: Group) -> None:
    for error in ranks(2).run(healing_jobs.refuse_half_weights):
        assert "heal cannot be used here" in error
        assert "DDP" in error


@pytest.mark.parametrize(
    ("engine", "on", "accumulate"), [("ddp", 0, 1), ("ddp", 1, 2), ("fsdp2", 1, 1), ("fsdp2", 0, 2)]
)
def test_an_alarm_of_one_rank_heals_all(
    ranks: Group, engine: healing_jobs.Engine, on: int, accumulate: int
) -> None:
    answers = ranks(2).run(healing_jobs.alarm, engine, on, accumulate)
    assert [bool(found) for found, _, _ in answers] == [rank == on for rank in (0, 1)]
    assert [islands for _, islands, _ in answers] == [["norm"], ["norm"]]
    assert not differences(answers[0][2], answers[1][2])


def test_a_plan_that_cannot_be_read_ends_all_ranks(ranks: Group, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("islands: [ {modul: x")
    for error in ranks(2).run(healing_jobs.start_in, str(tmp_path)):
        assert "The plan of an earlier run cannot be read" in error
