"""Healthy steps share rows, unusual steps have rows of their own, and a resumed run continues the file."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest

from halfguard.journal import (
    RUN_FILE,
    STEPS_FILE,
    Journal,
    collect_environment,
    make_run_info,
    read_rows,
)
from halfguard.records import HealthyStepsRow, RunInfo, Summary
from halfguard.records.step import LossCurve
from tests.journal.helper import skipped, spans, steps


def on_disk(run_dir: Path) -> list[tuple[int, int]]:
    return spans(read_rows(run_dir / STEPS_FILE))


def walk(journal: Journal, first: int, last: int) -> None:
    for step in range(first, last + 1):
        journal.add_healthy_step(step, loss=1.0, grad_norm=1.0, scale=65536.0)


def test_a_row_summarizes_its_healthy_steps(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, steps_per_row=3)) as journal:
        journal.add_healthy_step(5, loss=1.0, grad_norm=0.5, scale=4.0)
        journal.add_healthy_step(6, loss=4.0, grad_norm=0.25, scale=4.0)
        journal.add_healthy_step(7, loss=1.0, grad_norm=2.0, scale=8.0)
    assert list(read_rows(tmp_path / STEPS_FILE)) == [
        HealthyStepsRow(
            first_step=5,
            last_step=7,
            loss_mean=2.0,
            loss_max=4.0,
            grad_norm_min=0.25,
            grad_norm_max=2.0,
            scale=8.0,
            losses=LossCurve(steps_per_point=1, mean=(1.0, 4.0, 1.0)),
        )
    ]


def loss_curve(folder: Path, first: int, count: int) -> LossCurve:
    """Return the curve of one group, in which the loss of a step is its number."""
    with closing(Journal(folder, steps_per_row=count)) as journal:
        for step in range(first, first + count):
            journal.add_healthy_step(step, loss=float(step), grad_norm=1.0, scale=1.0)
        assert all(row.losses is None for row in journal.recent_rows(9))
    (row,) = read_rows(folder / STEPS_FILE)
    assert isinstance(row, HealthyStepsRow)
    assert row.losses is not None
    return row.losses


def test_an_early_group_keeps_the_loss_of_every_step(tmp_path: Path) -> None:
    curve = loss_curve(tmp_path, 1990, 120)
    assert curve == LossCurve(steps_per_point=1, mean=tuple(map(float, range(1990, 2110))))


@pytest.mark.parametrize(("first", "size"), [(2_000, 50), (19_999, 50), (20_000, 500)])
def test_later_groups_keep_the_spread_of_their_losses(
    tmp_path: Path, first: int, size: int
) -> None:
    curve = loss_curve(tmp_path, first, 2 * size + 20)
    assert curve.steps_per_point == size
    starts = [first, first + size, first + 2 * size]
    ends = [start + length - 1 for start, length in zip(starts, (size, size, 20), strict=True)]
    assert list(curve.low) == starts
    assert list(curve.high) == ends
    assert list(curve.mean) == [(a + b) / 2 for a, b in zip(starts, ends, strict=True)]


def test_losses_that_are_not_known_have_no_curve(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        for step in range(3):
            journal.add_healthy_step(step, loss=float("nan"), grad_norm=1.0, scale=1.0)
    (row,) = read_rows(tmp_path / STEPS_FILE)
    assert isinstance(row, HealthyStepsRow)
    assert row.losses is None


def test_what_closes_a_group(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "deep" / "run", steps_per_row=10)) as journal:
        walk(journal, 0, 11)  # its size
        journal.add_unusual_step(skipped(12))  # an unusual step
        walk(journal, 13, 14)
        walk(journal, 20, 21)  # a gap
        walk(journal, 3, 4)  # a step back
        journal.add_summary(Summary(epoch=0, steps=17))  # a summary
        walk(journal, 5, 5)
        journal.flush()  # a flush
        walk(journal, 6, 6)  # the end
    assert on_disk(tmp_path / "deep" / "run") == [
        (0, 9), (10, 11), (12, 12), (13, 14), (20, 21), (3, 4), (5, 5), (6, 6)
    ]  # fmt: skip


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, steps_per_row=10)) as journal:
        walk(journal, 0, 4)
        journal.flush()  # a checkpoint is taken here
        walk(journal, 5, 8)
    with closing(Journal(tmp_path, steps_per_row=10)) as journal:
        walk(journal, 5, 11)
    assert on_disk(tmp_path) == [(0, 4), (5, 8), (5, 11)]


def test_run_json_describes_the_latest_start(tmp_path: Path) -> None:
    for name in ("default", "fp16_safe"):
        with closing(Journal(tmp_path)) as journal:
            journal.write_run_info(make_run_info({"preset": name}))
    info = RunInfo.from_json((tmp_path / RUN_FILE).read_bytes())
    assert info.config == {"preset": "fp16_safe"}
    assert info.environment == collect_environment()
    assert info.started.endswith("+00:00")


@pytest.mark.parametrize("where", [None, "run"])
def test_recent_rows_are_the_last_rows_and_the_open_group(
    tmp_path: Path, where: str | None
) -> None:
    journal = Journal(None if where is None else tmp_path / where, steps_per_row=10, keep=3)
    assert journal.recent_rows(5) == []
    walk(journal, 0, 49)
    journal.add_unusual_step(skipped(50))
    walk(journal, 51, 52)
    assert spans(journal.recent_rows(2)) == [(50, 50), (51, 52)]
    assert spans(journal.recent_rows(99)) == [(30, 39), (40, 49), (50, 50), (51, 52)]
    assert journal.recent_rows(0) == []
    walk(journal, 53, 53)  # reading has not closed the group
    journal.close()
    assert spans(journal.recent_rows(1)) == [(51, 53)]
    assert [path.name for path in tmp_path.iterdir()] == ([] if where is None else [where])


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(Journal(None)) as journal:
        journal.write_run_info(make_run_info({}))
        journal.add_unusual_step(skipped(0))
        journal.add_summary(Summary())
    assert not list(tmp_path.iterdir())


def test_closing_twice_and_going_on_after_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    walk(journal, 0, 1)
    journal.close()
    journal.close()
    journal.add_unusual_step(skipped(2))
    assert on_disk(tmp_path) == [(0, 1)]
    assert journal.recent_rows(1) == [skipped(2)]


def test_a_journal_that_is_deleted_writes_its_last_group(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    walk(journal, 0, 4)
    del journal
    gc.collect()
    assert on_disk(tmp_path) == [(0, 4)]


def test_a_program_that_just_ends_loses_nothing_and_a_fork_adds_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from halfguard.journal import Journal\n"
        "assert 'torch' not in sys.modules\n"
        "journal = Journal(sys.argv[1])\n"
        "for step in range(5): journal.add_healthy_step(step, 1.0, 1.0, 1.0)\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert on_disk(tmp_path) == [(0, 4)]


@pytest.mark.slow
def test_a_million_steps_take_little_disk_and_no_memory(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    walk(journal, 0, 199_999)  # fills the memory of recent rows
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        walk(journal, 200_000, 999_999)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    journal.close()
    # The 100 rows that recent() keeps were replaced within the measured part, so they count once.
    assert after - before < 200_000
    assert (tmp_path / STEPS_FILE).stat().st_size < 1_000_000
    assert steps(read_rows(tmp_path / STEPS_FILE)) == list(range(1_000_000))


def test_two_journals_of_one_folder_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Journal(tmp_path)) as first:
        first.add_healthy_step(0, 1.0, 1.0, 1.0)
        first.flush()
        with closing(Journal(tmp_path)) as second:
            second.add_healthy_step(0, 1.0, 1.0, 1.0)
            second.flush()
            assert "two guards" not in caplog.text  # the first one may have ended
            for step in (1, 2):
                first.add_healthy_step(step, 1.0, 1.0, 1.0)
                first.flush()
    assert caplog.text.count("two guards in this process write to this folder") == 1
