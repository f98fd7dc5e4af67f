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

from halfguard.comparison.compare import CompareOptions, compare
from halfguard.comparison.groups import read_runs
from halfguard.comparison.logged_run import LoggedRun
from halfguard.comparison.tracker_files import _log_records
from halfguard.errors import UsageError
from tests.comparison.logs import write_csv
from tests.support.cases import each
from tests.support.docs import ROOT


def runs(folder: Path) -> list[LoggedRun]:
    (found,) = read_runs(str(folder)).runs.values()
    return found


def values(run: LoggedRun, metric: str) -> list[tuple[int, str]]:
    series = run.metrics[metric]
    return [(step, repr(value)) for step, value in zip(series.steps, series.values, strict=True)]


def write(writer: str, folder: Path) -> str:
    """Let a tracker's own package write a log; return the last line that was printed."""
    command = [sys.executable, "-m", f"tests.comparison.writers.{writer}", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] if done.stdout else ""


@pytest.mark.slow
def test_tensorboard_reads_what_its_own_reader_reads(tmp_path: Path) -> None:
    expected = json.loads(write("odd_tensorboard", tmp_path / "run"))
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
    assert f"is damaged (wrong checksum after byte {first}" in str(damaged.unfinished)


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


@pytest.mark.slow
def test_an_mlflow_store(tmp_path: Path) -> None:
    write("odd_mlflow", tmp_path)
    before = (tmp_path / "mlflow.db").read_bytes()
    first, second, third = runs(tmp_path)
    assert values(first, "loss") == [(5, "inf"), (10, "nan"), (20, "0.5")]
    assert first.settings == {
        "seed": "3", "team": "x", "id": first.labels["id"], "name": "first", "experiment": "fp16"
    }  # fmt: skip
    assert (first.failure, first.unfinished) == (None, None)
    assert 0 <= first.seconds < 600
    assert (second.name, second.failure) == ("second", "its status in MLflow is FAILED")
    assert third.unfinished == "its status in MLflow is RUNNING"
    assert (tmp_path / "mlflow.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    (chosen,) = read_runs(first.place).runs["MLflow"]  # the place of a run is an argument
    assert repr(chosen) == repr(first)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store, store:
        store.execute("update alembic_version set version_num = 'another'")
    with pytest.raises(
        UsageError, match=r"mlflow.db cannot be read: Detected out-of-date"
    ) as refused:
        read_runs(str(tmp_path))
    assert "mlflow db upgrade" in refused.value.message


def test_a_damaged_mlflow_store(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    with pytest.raises(UsageError, match=r"MLflow's store .* cannot be read"):
        read_runs(str(tmp_path))


def test_the_database_of_another_program_is_no_log(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as store:
        store.execute("create table runs (id)")
    with pytest.raises(UsageError, match="no runs of a tracker"):
        read_runs(str(tmp_path))


def in_blocks(records: list[bytes]) -> bytes:
    """Write records as wandb does: in blocks of 32 KiB, a long record in several parts."""
    data = bytearray(b":W&B\xe1\xbe\x00")
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


@each("first", [0, 10, 32768 - 7 - 7 - 7, 32768 - 7 - 7 - 3, 32768 - 14, 32768])
def test_records_continue_in_the_next_block(first: int) -> None:
    records = [b"a" * first, b"b" * 100_000, b"c", b"d" * 32_000]
    assert list(_log_records(in_blocks(records))) == records


def records(value: float, step: int, code: int | None) -> bytes:
    """Return the file of a run with one value, and its exit code if it has ended."""
    from wandb.proto.wandb_internal_pb2 import Record

    logged = Record()
    logged.history.item.add(key="loss", value_json=json.dumps(value))
    logged.history.step.num = step
    ended = Record()
    ended.exit.exit_code = code or 0
    found = [logged] if code is None else [logged, ended]
    return in_blocks([record.SerializeToString() for record in found])


@pytest.mark.slow
def test_how_a_wandb_run_ended(tmp_path: Path) -> None:
    for code, failure, unfinished in (
        (0, None, None),
        (1, "it ended with exit code 1", None),
        (255, None, "it was interrupted"),
        (None, None, "its wandb log has no end: it is still running or was killed"),
    ):
        (tmp_path / "run-abc.wandb").write_bytes(records(0.5, 30, code))
        (run,) = runs(tmp_path)
        assert values(run, "loss") == [(30, "0.5")]
        assert (run.failure, run.unfinished) == (failure, unfinished)
    (tmp_path / "run-abc.wandb").write_bytes(in_blocks([b"\x0a\x05ab"]))
    (run,) = runs(tmp_path)
    assert str(run.unfinished).startswith("run-abc.wandb is damaged (")


@pytest.mark.slow
def test_a_resumed_wandb_run_is_one_run(tmp_path: Path) -> None:
    for index, (value, code) in enumerate(((0.5, None), (0.25, 0))):
        folder = tmp_path / f"offline-run-2026010{index + 1}_000000-abc"
        folder.mkdir()
        (folder / "run-abc.wandb").write_bytes(records(value, 30 * index, code))
    (run,) = runs(tmp_path)
    assert values(run, "loss") == [(0, "0.5"), (30, "0.25")]
    assert run.unfinished is None


@pytest.mark.parametrize(
    ("package", "name"),
    [("tensorboard", "events.out.tfevents.1"), ("wandb", "run-a.wandb"), ("mlflow", "mlflow.db")],
)
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str
) -> None:
    for module in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    if package == "mlflow":
        with closing(sqlite3.connect(tmp_path / name)) as store:
            for table in ("experiments", "runs", "metrics", "alembic_version"):
                store.execute(f"create table {table} (id)")
    else:
        (tmp_path / name).write_bytes(in_blocks([b""]))
    with pytest.raises(
        UsageError, match="the Python package to read them is not installed"
    ) as refused:
        read_runs(str(tmp_path))
    assert refused.value.cure == f"Run: pip install {package}"
    write_csv(
        tmp_path / "run", [1.0], hparams={"seed": 1}
    )  # then other logs are read, and a note says so
    comparison, _ = compare([str(tmp_path), str(tmp_path / "run")], CompareOptions("val_loss"))
    assert any(f"(pip install {package})" in note for note in comparison.verdict.notes)
    with pytest.raises(UsageError, match="no run has a metric 'loss'") as refused:
        compare([str(tmp_path), str(tmp_path / "run")], CompareOptions("loss"))
    assert refused.value.cure.endswith(f"to read its logs: pip install {package}.")
