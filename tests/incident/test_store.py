"""The folder: whole or not at all, and opened with suspicion."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from halfguard.errors import HalfguardError, RecordError
from halfguard.incident import Incident, open_incident, write_incident
from halfguard.records import Action, Cause, IncidentRecord, MicroBatchRecord, StepRow
from tests.incident.hostile import hostile_folders
from tests.support.forks import FORKED

pytestmark = pytest.mark.usefixtures("device")

KILLS, HOSTILE = 12, 600  # `scripts/soak incident` runs 200 and 20,000


def record() -> IncidentRecord:
    step = StepRow(
        step=7,
        action=Action.SKIP,
        cause=Cause.BAD_BATCH,
        loss=float("nan"),
        grad_norm=1.0,
        scale=2.0,
    )
    batch = {"type": "tensor", "name": "batch.0"}
    return IncidentRecord(
        step=step,
        device="cpu",
        precision="fp16-mixed",
        config={},
        scale=2.0,
        micro_batches=(MicroBatchRecord(batch=batch),),
    )


def tensors() -> dict[str, torch.Tensor]:
    return {"batch.0": torch.arange(4.0), "model.weight": torch.ones(3, 2, dtype=torch.float16)}


@pytest.mark.on_standin
def test_round_trip(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "000007-r0", record(), tensors())
    incident = open_incident(folder)
    assert incident.record.to_json() == record().to_json()
    assert incident.tensors("model.")["weight"].dtype is torch.float16
    assert [path.name for path in tmp_path.iterdir()] == ["000007-r0"]


def test_a_record_of_the_first_version_can_be_read() -> None:
    """The schema is a contract: this text was written by version 1 and must stay readable."""
    text = (Path(__file__).parent / "incident_v1.json").read_text()
    old = IncidentRecord.from_json(text)
    assert (old.step.step, old.step.cause) == (7, Cause.BAD_BATCH)


def test_an_existing_incident_is_not_overwritten(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "000007-r0", record(), tensors())
    with pytest.raises(OSError, match="not empty"):
        write_incident(folder, record(), {"batch.0": torch.zeros(1)})
    assert open_incident(folder).tensors()["batch.0"].tolist() == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["000007-r0"]


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / "a", record(), tensors())
    secret = tmp_path / "secret.json"
    (folder / "incident.json").rename(secret)
    (folder / "incident.json").symlink_to(secret)
    with pytest.raises(RecordError, match="must not contain links"):
        open_incident(folder)


def test_an_alias_must_lead_to_a_tensor(tmp_path: Path) -> None:
    lost = record().model_copy(update={"aliases": {"model.b": "model.a"}})
    folder = write_incident(tmp_path / "a", lost, tensors())
    with pytest.raises(RecordError, match="refers to tensors that are missing"):
        open_incident(folder)


def write_for_ever(folder: Path, ready: Connection) -> None:
    many = {f"model.{i}": torch.full((200_000,), float(i)) for i in range(10)}
    ready.send("ready")
    for number in range(10_000):
        write_incident(folder / f"{number:06d}-r0", record(), many)


def kill_while_writing(folder: Path, kills: int, seed: int) -> int:
    """Kill a writer at random moments; the number of complete incidents that it left."""
    rng, whole = random.Random(seed), 0
    for attempt in range(kills):
        run = folder / str(attempt)
        run.mkdir()
        told, tells = FORKED.Pipe(duplex=False)
        writer = FORKED.Process(target=write_for_ever, args=(run, tells))
        writer.start()
        assert told.recv() == "ready"
        time.sleep(rng.uniform(0, 0.2))
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        for path in run.iterdir():
            if not path.name.startswith("."):
                opened = open_incident(path).tensors("model.")
                assert all((tensor == float(name)).all() for name, tensor in opened.items())
                whole += 1
        write_incident(run / "999999-r0", record(), tensors())  # the next run starts normally
        shutil.rmtree(run)
    return whole


@pytest.mark.slow
def test_kill_dash_nine_leaves_no_half_incident(tmp_path: Path) -> None:
    assert kill_while_writing(tmp_path, KILLS, seed=1) > 0


def open_and_read(folder: Path) -> Incident | None:
    """All that a reader does with a stranger's folder; None if it is refused."""
    try:
        incident = open_incident(folder)
        incident.tensors()
    except HalfguardError:
        return None
    return incident


def survive_hostile(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Open mutated folders; how many were opened and how many refused. Anything else raises."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "untouched").write_text("as it was")
    base = write_incident(folder / "base", record(), tensors())
    opened = refused = 0
    for hostile in hostile_folders(base, folder / "hostile", count, seed):
        if open_and_read(hostile) is None:
            refused += 1
        else:
            opened += 1
    assert (outside / "untouched").read_text() == "as it was"
    assert [path.name for path in outside.iterdir()] == ["untouched"]
    return opened, refused


@pytest.mark.slow
def test_hostile_folders_are_refused_or_read_and_nothing_else(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    opened, refused = survive_hostile(tmp_path, HOSTILE, seed=2)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert opened + refused == HOSTILE
    assert refused > HOSTILE / 2
    assert grown < 2**20, f"{grown} KiB"
