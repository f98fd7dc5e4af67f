"""A sentence of the training script in the journal: in its place, and without a trace in the counts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD

from halfguard.guard.guard import Guard
from halfguard.journal import read_rows
from halfguard.records import HealthyStepsRow, NoteRow
from tests.support.models import batches, loss_fn

pytestmark = pytest.mark.usefixtures("seed")


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
