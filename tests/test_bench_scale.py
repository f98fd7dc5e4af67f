"""``scripts/bench scale`` with small counts: the same code, and the formulas of the page on scale."""

from __future__ import annotations

import pytest
from benchmarks.timings.scaling import instruments, journal, lint, model, ranks, study

pytestmark = pytest.mark.slow


def test_a_healthy_step_sends_as_much_for_any_number_of_ranks() -> None:
    few, many = ranks.healthy_steps([2, 512]).rows
    memory = "host memory of the guard, kB"
    assert abs(many.pop(memory) - few.pop(memory)) < 16
    assert few | {"ranks": 512} == many


def test_an_unusual_step_grows_with_ranks() -> None:
    table = ranks.unusual_steps([2, 64, 256])
    assert table.column("bytes gathered") == [48 * count for count in (2, 64, 256)]
    small, large = table.column("manifest, kB")[1:]
    assert large / small == pytest.approx(4, rel=0.05)


def test_a_guarded_step_adds_as_much_for_any_number_of_tensors() -> None:
    (table,) = model.tables([20, 200])
    few, many = table.column("operations the guard adds")
    assert few == many <= 25
    assert table.column("host syncs") == [0, 0]
    few, many = table.column("operations trace adds, per module")
    assert few == pytest.approx(many, rel=0.1)
    weights, incident, snapshot = (
        table.column(f"{name}, kB") for name in ("weights", "incident", "snapshot")
    )
    assert all(w < i < s for w, i, s in zip(weights, incident, snapshot, strict=True))


def test_a_replay_runs_as_often_for_any_number_of_tensors() -> None:
    (table,) = instruments.tables([20, 60])
    few, many = table.column("runs of a replay")
    assert few == many
    assert all(value > 0 for value in table.column("doctor, in bare steps"))


def test_a_study_grows_with_its_runs() -> None:
    (table,) = study.tables([20, 200])
    small, large = table.column("study.json, MB")
    assert large / small == pytest.approx(10, rel=0.05)


def test_lint_grows_with_the_lines() -> None:
    (table,) = lint.tables([40_000, 120_000])
    small, large = table.rows
    assert 40_000 <= small["lines"] < 120_000 <= large["lines"]
    assert 0 < small["lines in files that are parsed"] < small["lines"]
    assert 0 < small["s on one core"] < large["s on one core"]


def test_a_journal_grows_with_unusual_steps_and_groups() -> None:
    # Up to step 20,000 the curve of the loss is finer; from there on only the number of rows counts.
    (table,) = journal.tables([20_000, 110_000, 200_000])
    start, small, large = table.column("MB on disk")
    assert (large - small) / (small - start) == pytest.approx(1, rel=0.05)
    per_row = (large - small) * 1e6 / 180  # a row for each unusual step and each group
    assert per_row < 300
    assert start * 1e6 < 60_000
    assert str(table).count("\n| ") == 5  # two lines of the heading, three rows
