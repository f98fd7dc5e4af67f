"""One guard at a time writes snapshots to a folder, in this process and in others."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.guard.recovery.snapshot_folder import FolderLock

pytestmark = pytest.mark.usefixtures("seed")

CONFIG: dict[str, Any] = {
    "precision": "fp32",
    "skip": {"max_consecutive": 2},
    "recovery": {"every": 5, "store": "disk"},
}
OWNER = """
import sys, time
from pathlib import Path
from halfguard.guard.recovery.snapshot_folder import FolderLock
lock = FolderLock(Path(sys.argv[1]))
assert lock.acquire() == ""
print("locked", flush=True)
time.sleep(60)
"""


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def new(run_dir: Path) -> hg.Guard:
    model = nn.Linear(4, 1, bias=False)
    return hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), CONFIG, run_dir=run_dir)


def test_a_second_guard_with_the_same_folder_is_refused(tmp_path: Path) -> None:
    first, second = new(tmp_path), new(tmp_path)
    batch = torch.randn(2, 4)
    assert first.step(loss_fn, batch).applied
    for attempt in (lambda: second.step(loss_fn, batch), second.resume):
        with pytest.raises(UsageError, match="Another guard of this process writes") as caught:
            attempt()
        assert "its own run_dir" in caught.value.cure
    for _ in range(9):
        assert first.step(loss_fn, batch).applied
    assert isinstance(first.model, nn.Linear)
    weight = first.model.weight.detach().clone()
    actions = [first.step(loss_fn, batch * torch.nan).action for _ in range(2)]
    assert actions[-1] == "roll_back"
    assert torch.equal(first.model.weight, weight)
    first.close()
    assert not (tmp_path / "snapshots.lock").exists()
    assert second.resume()
    assert isinstance(second.model, nn.Linear)
    assert torch.equal(second.model.weight, weight)


def test_a_guard_that_was_dropped_without_close_lets_go(tmp_path: Path) -> None:
    batch = torch.randn(2, 4)
    gc.disable()
    try:
        for _ in range(2):
            guard = new(tmp_path / str(0))
            guard.step(loss_fn, batch)
            del guard
            for folder in (tmp_path / "0" / "snapshots").glob("*"):
                (folder / "good").unlink(missing_ok=True)
    finally:
        gc.enable()


def test_a_closed_guard_that_goes_on_locks_again(tmp_path: Path) -> None:
    guard, batch = new(tmp_path), torch.randn(2, 4)
    guard.step(loss_fn, batch)
    guard.close()
    for _ in range(6):
        guard.step(loss_fn, batch)
    other = new(tmp_path)
    with pytest.raises(UsageError, match="Another guard of this process"):
        other.step(loss_fn, batch)


def test_memory_snapshots_share_a_folder(tmp_path: Path) -> None:
    config = CONFIG | {"recovery": {"store": "memory"}}
    for _ in range(2):
        model = nn.Linear(4, 1)
        guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0), config, run_dir=tmp_path)
        assert guard.step(loss_fn, torch.randn(2, 4)).applied
    assert not (tmp_path / "snapshots.lock").exists()


@pytest.mark.slow
def test_another_process_is_named_and_a_killed_one_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "snapshots.lock"
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "locked\n"
        guard = new(tmp_path)
        with pytest.raises(UsageError, match=f"Process {process.pid} on "):
            guard.step(loss_fn, torch.randn(2, 4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads(path.read_text())["pid"] == process.pid
        assert guard.step(loss_fn, torch.randn(2, 4)).applied
        assert json.loads(path.read_text())["pid"] == os.getpid()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    assert lock.acquire() == ""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # a data loader's worker
        os.close(writer)
        lock.release()  # not the owner: no effect
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        assert (tmp_path / "lock").exists()
        lock.release()
        assert FolderLock(tmp_path / "lock").acquire() == ""
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_without_locks_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("halfguard.checkpoints.saving.fcntl", None)
    assert FolderLock(tmp_path / "lock").acquire() == ""
    assert "no other run writes snapshots there" in caplog.text


def test_an_owner_that_cannot_be_read_is_another_process(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    assert lock.acquire() == ""
    (tmp_path / "lock").write_text("[]")
    assert FolderLock(tmp_path / "lock").acquire() == "another process"
