"""Rows are read back as written, partial lines are left out, and other damage is reported with its line."""

from __future__ import annotations

import json
import logging
import math
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfguard.errors import RecordError
from halfguard.journal import STEPS_FILE, Journal, read_rows
from halfguard.journal.jsonl import JsonlWriter
from halfguard.records import Action, Cause, HealthyStepsRow, JournalRow, StepRow, Summary
from tests.journal.helper import skipped, steps
from tests.support.cases import each

counts = st.integers(0, 2**53)
names = st.lists(st.text(), max_size=3).map(tuple)
step_rows = st.builds(
    StepRow,
    step=counts,
    epoch=counts,
    batch=counts,
    action=st.sampled_from(Action),
    cause=st.none() | st.sampled_from(Cause),
    loss=st.floats(),
    grad_norm=st.floats(),
    scale=st.floats(),
    culprits=names,
    batches=names,
    note=st.text(),
)
healthy_rows = st.builds(
    HealthyStepsRow,
    first_step=counts,
    last_step=counts,
    loss_mean=st.floats(),
    loss_max=st.floats(),
    grad_norm_min=st.floats(),
    grad_norm_max=st.floats(),
    scale=st.floats(),
)
summaries = st.builds(
    Summary,
    epoch=st.none() | counts,
    steps=counts,
    applied=counts,
    retried=counts,
    skipped=st.dictionaries(st.sampled_from(Cause), counts),
    rollbacks=counts,
    scale=st.floats(),
    scale_reductions=counts,
    grad_norm_min=st.floats(),
    grad_norm_max=st.floats(),
)


def same(left: object, right: object) -> bool:
    """Compare, with NaN equal to NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right


@given(st.lists(step_rows | healthy_rows | summaries, max_size=20))
def test_any_rows_are_read_back_equal(rows: list[JournalRow]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "steps.jsonl"
        lines = JsonlWriter(path)
        for row in rows:
            lines.append(row.to_json())
        lines.close()
        again = list(read_rows(path))
    assert [type(row) for row in again] == [type(row) for row in rows]
    for before, after in zip(rows, again, strict=True):
        for name in type(before).model_fields:
            assert same(getattr(before, name), getattr(after, name)), name


def test_a_row_cut_at_any_byte_is_left_out_and_written_over(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.add_unusual_step(skipped(0))
        journal.add_unusual_step(skipped(1, note="a line\nand μ"))
    path = tmp_path / STEPS_FILE
    whole = path.read_bytes()
    kept = whole.index(b"\n") + 1
    for end in range(kept, len(whole)):
        path.write_bytes(whole[:end])
        assert steps(read_rows(path)) == [0]
        with closing(Journal(tmp_path)) as journal:
            journal.add_unusual_step(skipped(7))
        assert steps(read_rows(path)) == [0, 7]


@each("torn", [1, 4095, 4096, 4097, 20_000])
@each("before", [0, 1])
def test_partial_lines_of_any_length_are_removed(tmp_path: Path, before: int, torn: int) -> None:
    path = tmp_path / STEPS_FILE
    path.write_text(f"{skipped(0).to_json()}\n" * before + "{" * torn)
    with closing(Journal(tmp_path)) as journal:
        journal.add_unusual_step(skipped(1))
    assert steps(read_rows(path)) == [0] * before + [1]


@each(
    ("damage", "message"),
    [
        (b"{\n", "line 2: .*not JSON"),
        (b"\n", "line 2: .*not JSON"),
        (b"\x00\x00\xff\n", "line 2: .*not JSON"),
        (b"[1]\n", "line 2: .*'kind'"),
        (b'{"kind": 3, "schema_version": 1}\n', "line 2: .*'kind'"),
        (b'{"kind": "comet"}\n', "line 2: .*'schema_version'"),
        (b'{"kind": "step", "schema_version": 1, "step": -1}\n', "line 2: .*damaged at"),
        (b'{"kind": "step", "schema_version": 99}\n', "line 2: .*(?s:version 99.*pip install)"),
    ],
)
def test_damage_inside_the_file_is_named_with_its_line(
    tmp_path: Path, damage: bytes, message: str
) -> None:
    path = tmp_path / "steps.jsonl"
    row = skipped(0).to_json().encode() + b"\n"
    path.write_bytes(row + damage + row)
    rows = read_rows(path)
    assert next(rows) == skipped(0)  # rows before the damage can still be read
    with pytest.raises(RecordError, match=message):
        next(rows)


def test_kinds_of_a_later_version_are_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    later = json.dumps({"kind": "comet", "schema_version": 5, "tail": [1]})
    path.write_text("\n".join([later, skipped(0).to_json(), later, skipped(1).to_json(), ""]))
    with caplog.at_level(logging.WARNING, logger="halfguard"):
        assert steps(read_rows(path)) == [0, 1]
    assert len(caplog.records) == 1
    assert "line 1: rows of kind 'comet' are ignored" in caplog.text


def test_reading_while_writing(tmp_path: Path) -> None:
    with closing(Journal(tmp_path, steps_per_row=10)) as journal:
        for step in range(100):
            journal.add_healthy_step(step, 1.0, 1.0, 1.0)
            assert steps(read_rows(tmp_path / STEPS_FILE)) == list(range((step + 1) // 10 * 10))
