"""Incidents from a guarded run: complete, bounded, and never in the way."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halfguard.guard.guard import Guard
from halfguard.incident import Incident, IncidentWriter, decode, open_incident, write_incident
from halfguard.incident.capture import MOST_RANKS, BadStep
from halfguard.records import Action, Cause, StepRow
from tests.support.cases import each
from tests.support.counting import OpCounter
from tests.support.models import OPTIMIZERS, Batch, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("device", "seed")


def guard_of(run_dir: Path | None, **config: object) -> Guard:
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["adamw-foreach"](model.parameters())
    return Guard(
        model, optimizer, {"scale": {"init": 64.0}, **config}, run_dir=run_dir, entry="a.py:b"
    )


def saved(run_dir: Path, name: str = "000000-r0") -> Incident:
    return open_incident(run_dir / "incidents" / name)


def names_in(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "incidents").iterdir())


def poisoned(batch: Batch) -> Batch:
    inputs = batch[0].clone()
    inputs[2, 3] = torch.inf
    return inputs, batch[1]


@pytest.mark.on_standin
def test_an_incident_holds_what_is_needed_to_repeat_the_step(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, accumulate=2)
    data = batches(6)
    for batch in data[:4]:
        guard.step(loss_fn, batch)
    guard.model.get_submodule("drop").eval()
    state = {k: v.clone() for k, v in guard.model.state_dict().items()}
    random_state = torch.get_rng_state()
    guard.step(loss_fn, data[4])
    outcome = guard.step(loss_fn, poisoned(data[5]), about="shard 7")
    assert outcome.cause is Cause.BAD_BATCH

    incident = saved(tmp_path, "000002-r0")
    record = incident.record
    assert (record.step.step, record.step.cause, record.scale) == (2, Cause.BAD_BATCH, 64.0)
    assert differences(incident.tensors("model."), state) == []
    tensors = incident.tensors()
    assert differences(decode(record.micro_batches[0].batch, tensors), data[4]) == []
    again = decode(record.micro_batches[1].batch, tensors)
    assert torch.isinf(again[0][2, 3])
    assert torch.equal(decode(record.micro_batches[0].rng, tensors)["torch"], random_state)
    assert record.micro_batches[1].about == "shard 7"
    assert record.evaluating == ("drop",)
    assert record.exact
    assert record.grad_norms.keys() == dict(guard.model.named_parameters()).keys()
    assert record.environment["torch"] == torch.__version__
    assert record.entry == "a.py:b"
    assert record.config["accumulate"] == 2
    assert len(record.recent) == 1


@pytest.mark.on_standin
def test_weights_that_share_memory_are_stored_once(tmp_path: Path) -> None:
    guard = guard_of(tmp_path)
    head = guard.model.get_submodule("last")
    guard.model.tied = head  # the same module under a second name
    guard.step(loss_fn, poisoned(batches(1)[0]))
    incident = saved(tmp_path)
    assert incident.record.aliases == {
        "model.tied.weight": "model.last.weight",
        "model.tied.bias": "model.last.bias",
    }
    assert differences(incident.tensors("model."), guard.model.state_dict()) == []


@pytest.mark.on_standin
def test_a_retried_step_is_captured_before_it_is_repeated(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, skip={"on_nonfinite": "retry_fp32"})
    before = {k: v.clone() for k, v in guard.model.state_dict().items()}
    inputs, labels = batches(1)[0]
    inputs[0, :4] *= 1e6
    assert guard.step(loss_fn, (inputs, labels)).action is Action.RETRY
    incident = saved(tmp_path)
    assert incident.record.step.cause is Cause.FORWARD_OVERFLOW
    assert differences(incident.tensors("model."), before) == []


def test_number_and_size_are_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = guard_of(tmp_path, incidents={"keep": 2})
    for batch in batches(5):
        guard.step(loss_fn, poisoned(batch))
    assert names_in(tmp_path) == ["000000-r0", "000001-r0"]
    incidents = guard._recorder.incidents
    assert incidents.missed == 3
    assert sum("no incident was saved" in message for message in caplog.messages) == 1

    monkeypatch.setattr("halfguard.guard.recorder.MAX_INCIDENT_BYTES", 100)
    small = guard_of(tmp_path / "small")
    assert small.step(loss_fn, poisoned(batches(1)[0])).action is Action.SKIP
    assert "limit for an incident is 100" in caplog.messages[-2]


def test_a_scale_that_finds_its_level_is_no_incident(tmp_path: Path) -> None:
    guard = guard_of(tmp_path, scale={"init": 2.0**23})
    assert guard.step(loss_fn, batches(1)[0]).cause is Cause.GRADIENT_OVERFLOW
    assert not (tmp_path / "incidents").exists()


@pytest.mark.parametrize("obstacle", ["file", "full"])
def test_a_disk_that_refuses_does_not_stop_training(
    obstacle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = guard_of(tmp_path)
    if obstacle == "file":
        (tmp_path / "incidents").write_text("in the way")
    else:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("halfguard.incident.store.save_file", full)
    first, second = batches(2)
    with caplog.at_level(logging.WARNING):
        assert guard.step(loss_fn, poisoned(first)).action is Action.SKIP
    assert any("no incident was saved" in message for message in caplog.messages)
    assert guard.step(loss_fn, second).applied
    if obstacle == "full":
        assert list((tmp_path / "incidents").iterdir()) == []


@pytest.mark.on_standin
def test_a_healthy_step_pays_nothing(tmp_path: Path) -> None:
    counts: list[Counter[str]] = []
    for config in ({"incidents": None}, {}):
        guard = guard_of(tmp_path / str(len(counts)), **config)
        data = batches(3)
        guard.step(loss_fn, data[0])
        counter = OpCounter()
        with counter:
            for batch in data[1:]:
                assert guard.step(loss_fn, batch)
        counts.append(counter.ops)
    assert counts[0] == counts[1]


@each(
    ("buffer", "problem"),
    [
        (torch.zeros(10_000), r".*the limit for an incident is 20000"),
        (
            torch.zeros(3, dtype=torch.complex128),
            r"model: weights of dtype torch\.complex128 cannot be saved",
        ),
    ],
)
def test_weights_that_cannot_be_kept_do_not_cost_the_batch(
    tmp_path: Path, buffer: torch.Tensor, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halfguard.guard.recorder.MAX_INCIDENT_BYTES", 20_000)
    guard = guard_of(tmp_path)
    guard.model.register_buffer("odd", buffer)
    guard.step(loss_fn, poisoned(batches(1)[0]))
    incident = saved(tmp_path)
    assert not incident.record.weights
    assert incident.tensors("model.") == {}
    (found,) = incident.record.problems
    assert re.fullmatch(problem, found)
    assert torch.isinf(decode(incident.record.micro_batches[0].batch, incident.tensors())[0][2, 3])


def test_a_step_number_that_occurs_twice(tmp_path: Path) -> None:
    for _ in range(3):
        guard_of(tmp_path).step(loss_fn, poisoned(batches(1)[0]))
    assert names_in(tmp_path) == ["000000-r0", "000000-r0-2", "000000-r0-3"]
    assert all(saved(tmp_path, name) for name in names_in(tmp_path))


def test_a_folder_that_another_process_makes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = guard_of(tmp_path)

    def late(folder: Path, *rest: Any) -> Path:
        if folder.name == "000000-r0":
            write_incident(folder, *rest)
        return write_incident(folder, *rest)

    monkeypatch.setattr("halfguard.incident.capture.write_incident", late)
    guard.step(loss_fn, poisoned(batches(1)[0]))
    assert names_in(tmp_path) == ["000000-r0", "000000-r0-2"]


def test_ids_that_the_loss_does_not_use(tmp_path: Path) -> None:
    inputs, labels = poisoned(batches(1)[0])
    batch = {
        "batch": (inputs, labels),
        "ids": np.arange(8),
        "names": np.array(["a", "b"]),
        "g": (i for i in "a"),
    }
    guard_of(tmp_path).step(lambda m, b: loss_fn(m, b["batch"]), batch)
    incident = saved(tmp_path)
    assert incident.record.problems == (
        "batch.0.names: an array of dtype <U1 cannot be saved",
        "batch.0.g: a generator cannot be saved",
    )
    again = decode(incident.record.micro_batches[0].batch, incident.tensors())
    assert differences(again["batch"], (inputs, labels)) == []
    assert isinstance(again["ids"], np.ndarray)
    assert again["ids"].tolist() == list(range(8))


def test_a_step_that_is_bad_on_every_rank_is_written_by_a_few_that_name_all(tmp_path: Path) -> None:
    everyone = tuple(range(32))
    row = StepRow(
        step=3,
        action=Action.SKIP,
        cause=Cause.FORWARD_OVERFLOW,
        loss=torch.inf,
        grad_norm=1.0,
        scale=1.0,
        ranks=everyone,
    )
    moment = BadStep(row, [(torch.ones(2), None, None)], {}, "fp32", "cpu")
    written = []
    for rank in everyone:
        writer = IncidentWriter(
            tmp_path, keep=9, max_bytes=2**20, weights=True, environment={}, rank=rank
        )
        written.append(writer.capture(make("mlp-batchnorm"), moment))
        assert writer.missed == 0
    names = [f"000003-r{rank}" for rank in range(MOST_RANKS)]
    assert [path.name for path in written if path is not None] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {open_incident(tmp_path / name).record.step.ranks for name in names} == {everyone}
