"""Snapshots on disk in one process: which are kept, which are removed; every damage is found."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from halfguard.dist import checkpoint
from halfguard.errors import RecordError
from halfguard.guard.guard import Guard
from halfguard.guard.recovery import snapshot_folder
from halfguard.guard.recovery.disk_store import DiskStore
from halfguard.guard.recovery.snapshot_store import SnapshotState
from halfguard.records import Action
from halfguard.records.snapshot import FileChecksum, SnapshotManifest
from tests.support.models import OPTIMIZERS, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("device", "seed")

CONFIG: dict[str, Any] = {
    "scale": {"init": 64.0},
    "skip": {"max_consecutive": 1},
    "recovery": {"store": "disk", "every": 3},
}


def new(run_dir: Path) -> Guard:
    model = make("mlp-batchnorm")
    return Guard(model, OPTIMIZERS["sgd"](model.parameters()), CONFIG, run_dir=run_dir)


def trained(run_dir: Path, steps: int) -> tuple[Guard, list[Any]]:
    guard, kept = new(run_dir), []
    for batch in batches(steps):
        assert guard.step(loss_fn, batch).applied
        kept.append(copy.deepcopy(guard.model.state_dict()))
    return guard, kept


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob("snapshots/*"))


@pytest.mark.on_standin
def test_a_rollback_finds_the_newest_damaged_and_takes_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard, kept = trained(tmp_path, 8)
    assert names(tmp_path) == ["000000003", "000000006"]
    next(tmp_path.glob("snapshots/000000006/shard-*")).unlink()
    (batch,) = batches(1)
    outcome = guard.step(lambda m, b: loss_fn(m, b) * torch.nan, batch)
    assert outcome.action is Action.ROLL_BACK
    assert differences(kept[2], guard.model.state_dict()) == []
    assert names(tmp_path) == ["000000003", "000000006.damaged"]
    assert "the snapshot of step 6 is damaged, so the guard rolls back to step 3" in caplog.text
    assert "safetensors is missing" in caplog.text


def test_older_ones_of_an_earlier_run_are_swept_away(tmp_path: Path) -> None:
    trained(tmp_path, 12)[0].close()
    newest = tmp_path / "snapshots" / "000000009"
    for step in (1, 2):
        shutil.copytree(newest, newest.with_name(f"{step:09d}"))
    assert new(tmp_path).resume()
    assert names(tmp_path) == ["000000006", "000000009"]


def test_a_kill_while_a_folder_is_removed_leaves_no_mark_on_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 9)[0].close()
    newest = tmp_path / "snapshots" / "000000006"

    def killed(path: Path, **_: Any) -> None:
        next(path.glob("shard-*")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            snapshot_folder.remove(newest)
    assert newest.exists()
    again = new(tmp_path)
    assert again.resume()
    assert again.step_index == 3
    assert names(tmp_path) == ["000000003"]


@pytest.mark.parametrize("failing", ["create", "add_rank_record", "mark_good"])
def test_a_disk_that_is_full_gives_up_the_spare_and_keeps_the_newest(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, _ = trained(tmp_path, 8)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_folder, failing, full)
        for batch in batches(3):
            assert guard.step(loss_fn, batch).applied
        assert names(tmp_path) == ["000000006"]
    for batch in batches(4):
        assert guard.step(loss_fn, batch).applied
    assert names(tmp_path)[:2] == ["000000006", "000000012"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("snapshots")
    disk = DiskStore(home, torch.device("cpu"), dict)
    state = SnapshotState(
        {"model": nn.Linear(3, 2).state_dict()}, {"model": {"mean": torch.ones(3)}}
    )
    held = disk.save(5, state)
    assert held is not None
    assert disk.mark_good(held)
    return held.path


def verify(folder: Path) -> None:
    snapshot_folder.verify_share(folder, snapshot_folder.read_manifest(folder))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_byte_and_no_cut_goes_unseen(saved: Path, data: st.DataObject) -> None:
    mark = SnapshotManifest.from_json((saved / "good").read_bytes())
    file = data.draw(st.sampled_from(sorted(saved.iterdir())))
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    if data.draw(st.booleans()):
        changed[place] ^= data.draw(st.integers(1, 255))
    else:
        del changed[place:]
    try:
        file.write_bytes(changed)
        try:
            verify(saved)
        except RecordError:
            return
        # White space in the manifest may change without changing its content.
        assert SnapshotManifest.from_json((saved / "good").read_bytes()) == mark
        assert file.name == "good"
    finally:
        file.write_bytes(whole)


def test_an_undamaged_one_is_read(saved: Path) -> None:
    verify(saved)
    disk = DiskStore(saved.parent, torch.device("cpu"), dict)
    ((step, held),) = disk.good()
    assert step == 5
    assert disk.load(held).own["model"]["mean"].tolist() == [1, 1, 1]


def test_what_torch_raises_while_it_reads_is_an_ordinary_error(saved: Path) -> None:
    with pytest.raises(RecordError, match=r"could not be read: .*nobody"):
        checkpoint.load_into(saved, {"nobody": torch.empty(2)}, checkpoint.read_index(saved))


def test_a_mark_that_names_files_elsewhere_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "000000001"
    shutil.copytree(saved, folder)
    (tmp_path / "elsewhere").write_text("x")
    (folder / "good").write_text(
        SnapshotManifest(files={"../elsewhere": FileChecksum.of(tmp_path / "elsewhere")}).to_json()
    )
    with pytest.raises(RecordError, match="not the name of a file in this folder"):
        snapshot_folder.read_manifest(folder)
