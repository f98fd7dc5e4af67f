"""Warnings about a run that goes on, but not well: each is given once, and healthy runs get none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.guard.config import preset_names
from halfguard.guard.guard import Guard
from halfguard.guard.recorder import ATTEMPTS, SCHEDULE_STEPS, ZERO_STEPS, RunHealth
from halfguard.journal import read_rows
from halfguard.records import Action, HealthRow, HealthWarning, HealthyStepsRow, NoteRow
from tests.support.models import OPTIMIZERS, batches, loss_fn, make

pytestmark = pytest.mark.usefixtures("seed")

ZERO, LOW, FEW = (HealthWarning.ZERO_GRADIENTS, HealthWarning.LOW_SCALE, HealthWarning.FEW_APPLIED)
Step = tuple[Action, float, float]
APPLIED: Step = (Action.APPLY, 1.0, 1024.0)


def warnings_of(steps: list[Step], health: RunHealth | None = None) -> list[HealthWarning]:
    health = health or RunHealth()
    return [warning for step in steps for warning in health.add(*step)]


# -- the laws


@given(st.integers(0, 40), st.integers(0, 30), st.integers(0, 40))
def test_gradients_of_0_in_a_row(before: int, zeros: int, after: int) -> None:
    steps = [APPLIED] * before + [(Action.APPLY, 0.0, 1024.0)] * zeros + [APPLIED] * after
    assert warnings_of(steps) == ([ZERO] if zeros >= ZERO_STEPS else [])


def test_gradients_of_0_now_and_then_are_nothing() -> None:
    steps = ([(Action.APPLY, 0.0, 8.0)] * (ZERO_STEPS - 1) + [(Action.APPLY, 1e-30, 8.0)]) * 50
    assert warnings_of(steps) == []


@given(st.integers(0, 60), st.integers(0, 54))
def test_the_scale_may_fall_by_less_than_ten_halvings(start: int, falls: int) -> None:
    steps = [(Action.SKIP, float("inf"), 2.0 ** (start - fall)) for fall in range(falls + 1)]
    counted = falls - max(0, start - 16)  # above torch's first scale it is searched for
    applied = (Action.APPLY, 1.0, 2.0 ** (start - falls))
    assert warnings_of([*steps, applied]) == ([LOW] if counted >= 10 else [])


@pytest.mark.parametrize("powers", [[40], range(16, 25)])
def test_a_scale_that_was_in_use_is_compared_with_its_peak(powers: Sequence[int]) -> None:
    used: list[Step] = [(Action.APPLY, 1.0, 2.0**power) for power in powers]
    assert warnings_of([*used, (Action.SKIP, 1.0, 2.0 ** (powers[-1] - 9))]) == []
    assert warnings_of([*used, (Action.SKIP, 1.0, 2.0 ** (powers[-1] - 10))]) == [LOW]


@given(st.integers(0, 100), st.integers(0, 2 * ATTEMPTS), st.integers(0, 100))
def test_more_than_half_of_50_steps_repeated(before: int, repeats: int, after: int) -> None:
    steps = [APPLIED] * before + [(Action.RETRY, 1.0, 1024.0)] * repeats + [APPLIED] * after
    assert warnings_of(steps) == ([HealthWarning.MANY_REPEATED] if repeats > 25 else [])


def test_a_schedule_that_runs_ahead_is_told_once_after_ten_skipped_steps() -> None:
    health = RunHealth()
    told = [warning for _ in range(40) for warning in health.add_moved_schedule()]
    assert told == [HealthWarning.SCHEDULE_AHEAD]
    assert [bool(RunHealth().add_moved_schedule()) for _ in range(SCHEDULE_STEPS - 1)] == [
        False
    ] * 9


def test_a_skipped_step_for_each_growth_of_the_scale_is_no_schedule_that_runs_ahead() -> None:
    health = RunHealth()
    for step in range(40_000):
        skipped = step % 2000 == 0
        health.add(Action.SKIP if skipped else Action.APPLY, 1.0, 65536.0)
        assert not (skipped and health.add_moved_schedule())


@given(st.lists(st.booleans(), max_size=600))
def test_the_share_of_applied_steps(applied: list[bool]) -> None:
    steps = [APPLIED if yes else (Action.SKIP, 1.0, 1024.0) for yes in applied]
    counted = applied[applied.index(True) :] if True in applied else []
    windows = [counted[end - ATTEMPTS : end] for end in range(ATTEMPTS, len(counted) + 1)]
    low = any(sum(window) < 0.9 * ATTEMPTS for window in windows)
    assert warnings_of(steps) == ([FEW] if low else [])


# -- healthy runs


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("init", [65536.0, 2.0**24])
def test_the_search_for_the_first_scale_is_no_warning(
    preset: str, init: float, caplog: pytest.LogCaptureFixture
) -> None:
    if preset == "native_fp16":
        pytest.skip("it needs FP16 weights")
    model = make("mlp-batchnorm")
    guard = Guard(model, OPTIMIZERS["adamw-foreach"](model.parameters()), preset)
    guard.scaler.load_state_dict(guard.scaler.state_dict() | {"scale": init})
    for batch in batches(250):
        guard.step(loss_fn, batch)
    assert guard.summary().warnings == ()
    assert not any("loss scale" in record.getMessage() for record in caplog.records)


# -- the guard


def guarded(run_dir: Path, **config: Any) -> Guard:
    model = nn.Linear(4, 1)
    return Guard(model, SGD(model.parameters(), lr=1e-6), config, run_dir=run_dir)


def told(guard: Guard, run_dir: Path, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Return the warnings, after checks that log, journal and summary tell the same, once each."""
    summary = guard.close()
    rows = [row for row in read_rows(run_dir / "steps.jsonl") if isinstance(row, HealthRow)]
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for row in rows:
        assert sum(row.text in line for line in logged) == 1
    assert [row.warning for row in rows] == list(summary.warnings)
    return {row.warning: row.text for row in rows}


def test_a_guard_tells_of_gradients_that_are_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded(tmp_path, precision="fp32")

    def detached(model: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = model(x)
        return (y - y.detach()).relu().mean() * 0 + 1.0

    for _ in range(30):
        assert guard.step(detached, torch.randn(4, 4)).applied
    assert list(told(guard, tmp_path, caplog)) == [ZERO]


def overflowing(model: nn.Module, batch: tuple[Tensor, float]) -> Tensor:
    x, factor = batch
    y: Tensor = model(x)
    return y.float().mean() * factor


def test_a_guard_tells_of_a_scale_that_fell_too_far(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded(tmp_path)
    for _ in range(5):
        guard.step(overflowing, (torch.ones(4, 4), 1.0))
    for _ in range(20):
        guard.step(overflowing, (torch.ones(4, 4), 6e4))  # its gradients fit only at a scale of 1
    assert guard.scaler.get_scale() == 1.0
    texts = told(guard, tmp_path, caplog)
    assert list(texts) == [LOW]
    assert "fell from 65536 to 64" in texts[LOW]
    assert len(list((tmp_path / "incidents").iterdir())) == 1, "the first at such a scale"


def test_a_guard_tells_of_many_lost_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = guarded(tmp_path, precision="fp32", incidents=None)
    for index in range(300):
        x = torch.full((4, 4), torch.nan) if index % 5 == 4 else torch.randn(4, 4)
        guard.step(overflowing, (x, 1.0))
    texts = told(guard, tmp_path, caplog)
    assert list(texts) == [FEW]
    assert "160 of the last 200 steps" in texts[FEW]


# -- notes of the training script


def test_a_note_is_in_journal_and_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "halfguard")
    model = nn.Linear(12, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, {"scale": {"init": 1024.0}}, run_dir=tmp_path)
    for step, batch in enumerate(batches(4)):
        guard.step(loss_fn, batch)
        if step == 1:
            guard.note("2 batches without a teacher")
    guard.close()
    rows = list(read_rows(tmp_path / "steps.jsonl"))
    assert [row for row in rows if isinstance(row, NoteRow)] == [
        NoteRow(step=2, text="2 batches without a teacher")
    ]
    [group] = [row for row in rows if isinstance(row, HealthyStepsRow)]
    assert (group.first_step, group.last_step) == (0, 3)  # one group, in spite of the note
    assert "step 2: 2 batches without a teacher" in caplog.text
    assert guard.counts.steps == 4


def test_without_a_folder_it_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "halfguard")
    model = nn.Linear(12, 4)
    Guard(model, SGD(model.parameters(), lr=0.1)).note("started")
    assert "step 0: started" in caplog.text


@pytest.mark.parametrize(("given", "written"), [("caf\udce9.png", "caf?.png"), (3, "3")])
def test_any_text_can_be_written(given: object, written: str, tmp_path: Path) -> None:
    model = nn.Linear(12, 4)
    guard = Guard(model, SGD(model.parameters(), lr=0.1), run_dir=tmp_path)
    guard.note(given)  # type: ignore[arg-type]
    guard.close()
    rows = list(read_rows(tmp_path / "steps.jsonl"))
    assert [row.text for row in rows if isinstance(row, NoteRow)] == [written]
