"""What each reader makes of unusual files: NaN, nested folders, checkpoints, failed and damaged runs."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from halfguard.comparison.encodings.leveldb_log import log_records
from halfguard.comparison.encodings.protobuf import MalformedMessageError, fields
from halfguard.comparison.log_files import read_runs
from halfguard.comparison.logged_run import LoggedRun
from halfguard.errors import UsageError
from tests.support.docs import ROOT


def runs(folder: Path) -> list[LoggedRun]:
    (found,) = read_runs(str(folder)).values()
    return found


def values(run: LoggedRun, metric: str) -> list[tuple[int, str]]:
    series = run.metrics[metric]
    return [(step, repr(value)) for step, value in zip(series.steps, series.values, strict=True)]


@pytest.mark.slow
def test_tensorboard_reads_what_its_own_reader_reads(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.comparison.writers.odd_tensorboard", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout.splitlines()[-1])
    (run,) = runs(tmp_path)
    assert {"plain", "bad", "negative step", "ü/loss"} <= expected.keys()
    for tag, own in expected.items():
        assert [list(pair) for pair in values(run, tag)] == own, tag
    assert values(run, "new") == [(0, "0.0"), (1, "0.3333333432674408"), (2, "0.6666666865348816")]
    assert values(run, "two_a/two") == [(3, "1.0")]
    assert run.settings["seed"] == "7"
    assert run.settings["learning_rate"] == "0.1"
    (file,) = (tmp_path / "run").glob("*tfevents*")
    _damage(file, run)


def _damage(file: Path, run: LoggedRun) -> None:
    """Check that a cut file is read up to the cut, and that a damaged one is reported."""
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 3])
    (cut,) = runs(file.parent)
    assert cut.unfinished is None  # the writer flushes whole blocks: the end is always cut
    assert len(cut.metrics["plain"].values) < len(run.metrics["plain"].values) + 1
    first = 12 + struct.unpack_from("<Q", whole)[0] + 4
    file.write_bytes(whole[:first] + b"\xff" + whole[first + 1 :])
    (damaged,) = runs(file.parent)
    assert f"is damaged (wrong checksum at byte {first}" in str(damaged.unfinished)


def test_the_newest_state_of_a_trainer_is_read(tmp_path: Path) -> None:
    for step in (5, 100):  # as text, checkpoint-5 comes after checkpoint-100
        folder = tmp_path / f"fp16-seed1/checkpoint-{step}"
        folder.mkdir(parents=True)
        history = [{"step": s, "epoch": 0.1, "eval_loss": 1 / s} for s in (5, 100) if s <= step]
        state = {"global_step": step, "log_history": [*history, {"step": step, "loss": math.nan}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    (run,) = runs(tmp_path)
    assert (run.name, run.place) == ("fp16-seed1", str(tmp_path / "fp16-seed1"))
    assert values(run, "eval_loss") == [(5, "0.2"), (100, "0.01")]
    assert values(run, "loss") == [(100, "nan")]


@pytest.mark.parametrize("text", ["{", "[]", '{"log_history": [1, {"step": null, "loss": null}]}'])
def test_a_damaged_state_of_a_trainer(tmp_path: Path, text: str) -> None:
    (tmp_path / "trainer_state.json").write_text(text)
    (run,) = runs(tmp_path)
    assert run.metrics == {}


def test_empty_cells_of_a_csv_are_not_values(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.25\n1,19,nan,\n1,19,,inf\n"
    )
    (run,) = runs(tmp_path)
    assert values(run, "val_loss") == [(9, "0.25"), (19, "inf")]
    assert values(run, "train_loss") == [(9, "0.5"), (19, "nan")]


STORE = """
create table experiments (experiment_id integer, name text);
create table runs (run_uuid text, name text, status text, start_time integer, end_time integer,
                   experiment_id integer, lifecycle_stage text);
create table metrics (key text, value real, timestamp integer, run_uuid text, step integer, is_nan);
create table params (key text, value text, run_uuid text);
create table tags (key text, value text, run_uuid text);
insert into experiments values (1, 'fp16');
insert into runs values ('a', 'first', 'FINISHED', 1000, 3500, 1, 'active'),
    ('b', null, 'FAILED', 2000, 3000, 1, 'active'), ('c', 'third', 'RUNNING', 3000, null, 1, 'active'),
    ('d', 'gone', 'FINISHED', 1, 2, 1, 'deleted');
insert into metrics values ('loss', 0.5, 9, 'a', 20, 0), ('loss', 0, 8, 'a', 10, 1),
    ('loss', 1.7976931348623157e308, 7, 'a', 5, 0);
insert into params values ('seed', '3', 'a');
insert into tags values ('team', 'x', 'a'), ('mlflow.user', 'y', 'a');
"""


def test_an_mlflow_store(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        store.executescript(STORE)
    before = (tmp_path / "mlflow.db").read_bytes()
    first, second, third = runs(tmp_path)
    assert values(first, "loss") == [(5, "inf"), (10, "nan"), (20, "0.5")]
    assert first.settings == {
        "seed": "3", "team": "x", "id": "a", "name": "first", "experiment": "fp16"
    }  # fmt: skip
    assert (first.failure, first.unfinished, first.seconds) == (None, None, 2.5)
    assert (second.name, second.failure) == ("b", "MLflow has the status FAILED")
    assert third.unfinished == "MLflow has the status RUNNING"
    assert (tmp_path / "mlflow.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    (chosen,) = read_runs(first.place)["MLflow"]  # the place of a run is an argument
    assert chosen == first


def test_a_damaged_mlflow_store(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    with pytest.raises(UsageError, match=r"MLflow's store .* cannot be read"):
        read_runs(str(tmp_path))


def test_the_database_of_another_program_is_no_log(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as store:
        store.execute("create table runs (id)")
    with pytest.raises(UsageError, match="no run of a tracker"):
        read_runs(str(tmp_path))


@pytest.mark.parametrize(
    "message",
    [b"\x0a\x05ab", b"\x0b", b"\x80", b"\x08" + b"\xff" * 11, b"\x0d\x00\x00"],
    ids=["short field", "group", "cut number", "long number", "cut float"],
)
def test_bytes_that_are_no_message(message: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        list(fields(message))


def in_blocks(records: list[bytes], start: int) -> bytes:
    """Write records as LevelDB does: in blocks of 32 KiB, a long record in several parts."""
    data = bytearray(start)
    for record in records:
        for kind, part in _parts(record, data):
            checksum = zlib.crc32(part, zlib.crc32(bytes([kind])))
            data += struct.pack("<IHB", checksum, len(part), kind) + part
    return bytes(data)


def _parts(record: bytes, data: bytearray) -> Iterator[tuple[int, bytes]]:
    at, first = 0, True
    while first or at < len(record):
        left = 32768 - len(data) % 32768
        if left < 7:
            data += bytes(left)
            left = 32768
        part = record[at : at + left - 7]
        at += len(part)
        last = at >= len(record)
        yield (
            {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, last],
            part,
        )
        first = False


@pytest.mark.parametrize("first", [0, 10, 32768 - 7 - 7 - 7, 32768 - 7 - 7 - 3, 32768 - 14, 32768])
def test_records_continue_in_the_next_block(first: int) -> None:
    records = [b"a" * first, b"b" * 100_000, b"c", b"d" * 32_000]
    assert list(log_records(in_blocks(records, 7), 7)) == records


def field(number: int, value: int | bytes) -> bytes:
    """Return one field of a message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@pytest.mark.parametrize(
    ("code", "failure", "unfinished"),
    [
        (0, None, None),
        (1, "it ended with exit code 1", None),
        (255, None, "it was interrupted"),
        (None, None, "wandb has not logged its end: it is still running, or was killed"),
    ],
)
def test_how_a_wandb_run_ended(
    tmp_path: Path, code: int | None, failure: str | None, unfinished: str | None
) -> None:
    history = field(1, field(1, b"loss") + field(16, b"0.5")) + field(2, field(1, 30))
    records = [field(2, history)]
    if code is not None:
        records.append(field(18, field(1, code) if code else b""))
    (tmp_path / "run-abc.wandb").write_bytes(b":W&B\xe1\xbe\x00" + in_blocks(records, 7)[7:])
    (run,) = runs(tmp_path)
    assert values(run, "loss") == [(30, "0.5")]
    assert (run.failure, run.unfinished) == (failure, unfinished)


def test_a_resumed_wandb_run_is_one_run(tmp_path: Path) -> None:
    for index, value in enumerate((b"0.5", b"0.25")):
        folder = tmp_path / f"offline-run-2026010{index + 1}_000000-abc"
        folder.mkdir()
        history = field(1, field(1, b"loss") + field(16, value)) + field(2, field(1, 30 * index))
        records = [field(2, history), *([field(18, b"")] if index else [])]
        data = b":W&B\xe1\xbe\x00" + in_blocks(records, 7)[7:]
        (folder / "run-abc.wandb").write_bytes(data)
    (run,) = runs(tmp_path)
    assert values(run, "loss") == [(0, "0.5"), (30, "0.25")]
    assert run.unfinished is None
