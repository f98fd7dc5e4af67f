"""Ranks watch together: each looks at its own batches, one writes the journal, nobody waits for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfguard.guard.watching.watching import sampled_step
from halfguard.journal import read_rows
from halfguard.records.watch import WatchRow
from tests.dist import healing_jobs, watching_jobs
from tests.dist.watching_jobs import EVERY, STEPS, Fault, Watched
from tests.support.models import differences
from tests.support.ranks import Group

WATCH: dict[str, Any] = {"watch": {"every": EVERY}}
SAMPLED = [sampled_step(index, EVERY) for index in range(STEPS // EVERY + 1)]


def both(ranks: Group, fault: Fault, extra: dict[str, Any], folder: Path) -> list[Watched]:
    found: list[Watched] = ranks(2).run(watching_jobs.run, fault, extra, str(folder))
    assert not differences(found[0].weights, found[1].weights)
    return found


def fault_line() -> int:
    lines = Path(healing_jobs.__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if "x / torch.sqrt((x * x)" in text)


def test_the_rank_with_the_fault_names_it_and_itself_and_one_rank_writes(
    ranks: Group, tmp_path: Path
) -> None:
    first, second = both(ranks, "overflow", WATCH, tmp_path)
    assert first.alarms == []
    assert second.alarms == [(SAMPLED[0], "norm", fault_line())]
    assert not any("swallowed" in text for text in first.texts)
    [told] = [text for text in second.texts if "swallowed" in text]
    assert told.startswith(f"step {SAMPLED[0]} (rank 1): ")
    assert first.applied == second.applied == [True] * STEPS  # no step was held up for it
    written = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, WatchRow)]
    due = [step for step in SAMPLED if step < STEPS]
    assert [row.step for row in written] == due
    assert first.sampled == due
    assert first.interval == second.interval == len(due) - 1


@pytest.mark.parametrize("fault", ["overflow", "audit raises", "nan"])
def test_no_collective_is_added_and_nothing_else_changes(
    ranks: Group, fault: Fault, tmp_path: Path
) -> None:
    bare = both(ranks, fault, {}, tmp_path / "bare")
    watched = both(ranks, fault, WATCH, tmp_path / "watched")
    for one, other in zip(bare, watched, strict=True):
        assert one.collectives
        assert one.collectives == other.collectives
        assert one.applied == other.applied
        assert not differences(one.weights, other.weights)


@pytest.mark.parametrize("extra", [{}, {"heal": {}}])
def test_an_audit_that_raises_on_one_rank_holds_up_nobody(
    ranks: Group, extra: dict[str, Any], tmp_path: Path
) -> None:
    found = both(ranks, "audit raises", WATCH | extra, tmp_path)
    assert [any("audit of a sampled step failed" in text for text in one.texts) for one in found] == [
        False, True
    ]  # fmt: skip
    assert [one.alarms for one in found] == [[], []]
    assert [one.islands for one in found] == [[], []]


def test_a_nan_on_one_rank_moves_the_sample_on_all(ranks: Group, tmp_path: Path) -> None:
    first, second = both(ranks, "nan", WATCH, tmp_path)
    assert first.applied == second.applied
    assert not first.applied[SAMPLED[0]]
    assert first.blamed == [(1,)]
    assert first.sampled[0] == SAMPLED[0] + 1
    assert first.interval == second.interval >= 0


def test_an_alarm_of_one_rank_heals_all(ranks: Group, tmp_path: Path) -> None:
    found = both(ranks, "overflow", WATCH | {"heal": {}}, tmp_path)
    assert [one.islands for one in found] == [["norm"], ["norm"]]
