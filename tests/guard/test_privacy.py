"""With ``privacy: true`` nothing that a batch holds or is called reaches a file, a log or an error.

A canary, a string and a number that occur nowhere else, is put everywhere that a batch can carry one.
"""

from __future__ import annotations

import logging
import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import halfguard as hg
from halfguard.errors import TrainingHaltedError, UsageError
from halfguard.guard.guard import Guard
from halfguard.incident import open_incident
from halfguard.incident.capture import summarize_batch
from halfguard.records import Action
from halfguard.workload import Workload

pytestmark = pytest.mark.usefixtures("seed")

WORD, NUMBER = "kanarienvogel", 7310993177
BYTES = torch.tensor(list(WORD.encode()), dtype=torch.uint8)
X = torch.full((8, 16), torch.nan)


@dataclass
class Sample:
    x: Tensor
    name: str


class Slotted:
    __slots__ = ("name", "x")

    def __init__(self, x: Tensor) -> None:
        self.x, self.name = x, WORD


class Shown:
    """A batch whose own text has the canary."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __repr__(self) -> str:
        return WORD


Named = namedtuple("Named", ["x", "name"])
PLACES: dict[str, Any] = {
    "value": {"x": X, "name": WORD},
    "key": {"x": X, WORD: 1},
    "key of a tensor": {"x": X, WORD: torch.ones(2)},
    "list": {"x": X, "names": [WORD] * 8},
    "nested": {"x": X, "more": [{"deep": (1, {"name": WORD})}]},
    "number": {"x": X, "id": NUMBER},
    "numbers": {"x": X, "ids": [NUMBER, NUMBER + 1]},
    "tensor of bytes": {"x": X, "text": BYTES},
    "tensor of numbers": {"x": X, "id": torch.tensor([NUMBER])},
    "float": {"x": X, "id": float(NUMBER)},
    "array": {"x": X, "names": np.array([WORD, "b"])},
    "objects": {"x": X, "names": np.array([WORD, 1], dtype=object)},
    "fields of an array": {"x": X, "table": np.zeros(2, dtype=[(WORD, "f4")])},
    "dataclass": Sample(X, WORD),
    "slots": Slotted(X),
    "namespace": SimpleNamespace(x=X, name=WORD),
    "namedtuple": Named(X, WORD),
    "repr": Shown(X),
    "mask": {"x": X, f"{WORD}_mask": torch.full((2, 2), -math.inf)},
}


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"] if isinstance(batch, dict) else batch.x
    y: Tensor = model(x)
    return y.float().square().mean()


def found_in(folder: Path) -> list[str]:
    """Return the files below a folder that hold the canary, in their contents or names."""
    needles = [
        WORD.encode(), str(NUMBER).encode(), NUMBER.to_bytes(8, "little"),
        torch.tensor(float(NUMBER), dtype=torch.float64).numpy().tobytes(),
    ]  # fmt: skip
    return [
        str(path)
        for path in folder.rglob("*")
        if WORD in path.name
        or (path.is_file() and any(needle in path.read_bytes() for needle in needles))
    ]


def holds_canary(text: str) -> bool:
    return WORD in text or str(NUMBER) in text


def run_into_a_halt(run_dir: Path, batch: Any, **config: Any) -> str:
    """Return the error that ends a run of this batch, after journal and incidents were written."""
    model = nn.Linear(16, 2)
    values = {"scale": {"init": 8.0}, "skip": {"max_consecutive": 3}} | config
    guard = Guard(model, SGD(model.parameters(), lr=0.1), values, run_dir=run_dir)
    for _ in range(6):
        guard.step(loss_fn, {"x": torch.randn(8, 16), "name": WORD}, about=WORD)
    for _ in range(30):
        try:
            guard.step(loss_fn, batch, about=f"about {WORD} {NUMBER}")
        except TrainingHaltedError as error:
            return str(error)
    raise AssertionError("the run was not stopped")


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_a_private_batch_is_told(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = run_into_a_halt(tmp_path, PLACES[place], privacy=True)
    assert not holds_canary(error)
    assert "float32[8, 16]" in error, "dtypes and shapes are told"
    assert not holds_canary(caplog.text)
    assert (tmp_path / "steps.jsonl").read_text().count("float32[8, 16]") >= 3
    assert list((tmp_path / "incidents").iterdir())
    assert found_in(tmp_path) == []


@pytest.mark.parametrize(
    "config",
    [
        {"skip": {"on_nonfinite": "retry_fp32", "max_consecutive": 3}},
        {"skip": {"on_nonfinite": "raise"}},
        {"recovery": {"every": 2, "store": "disk", "max_rollbacks": 1, "ladder": []}},
        {"precision": "fp32", "accumulate": 1, "incidents": None},
    ],
    ids=["retry", "raise", "rollback", "fp32"],
)
def test_nor_in_other_modes(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = run_into_a_halt(tmp_path, PLACES["value"], privacy=True, **config)
    assert not holds_canary(error + caplog.text)
    assert found_in(tmp_path) == []


def test_nor_in_a_loop_of_ones_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(16, 2)
    config = {"privacy": True, "skip": {"on_nonfinite": "raise"}}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config, run_dir=tmp_path)
    with guard.autocast():
        loss = loss_fn(model, PLACES["value"])
    guard.backward(loss, batch=PLACES["value"], about=WORD)
    with caplog.at_level(logging.DEBUG), pytest.raises(TrainingHaltedError) as caught:
        guard.update()
    assert not holds_canary(str(caught.value) + caplog.text)
    assert found_in(tmp_path) == []


# -- without privacy


@pytest.mark.parametrize("place", PLACES)
def test_without_incidents_no_contents_are_written(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(16, 2)
    config = {"scale": {"init": 8.0}, "incidents": None}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config, run_dir=tmp_path)
    with caplog.at_level(logging.DEBUG):
        assert guard.step(loss_fn, PLACES[place], about="shard 3").action is Action.SKIP
    guard.close()
    assert found_in(tmp_path) == []
    assert not holds_canary(caplog.text)
    assert "shard 3, float32[8, 16]" in (tmp_path / "steps.jsonl").read_text()


def test_where_batches_are_kept_the_journal_describes_them_and_errors_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = run_into_a_halt(tmp_path, PLACES["list"])
    assert found_in(tmp_path), "journal and incident may hold it"
    assert f"batch: about {WORD}" in error, "what the user wrote for this purpose is shown"
    assert "'" + WORD not in error
    assert WORD not in caplog.text


# -- the incident


def test_replay_says_why_it_cannot_repeat_a_private_step(tmp_path: Path) -> None:
    run_into_a_halt(tmp_path, PLACES["value"], privacy=True)
    folder = next((tmp_path / "incidents").iterdir())
    incident = open_incident(folder)
    assert incident.record.problems == ("batch.0: a private batch cannot be saved",)
    assert incident.record.weights
    assert not any(name.startswith("batch") for name in incident.names)
    [micro] = incident.record.micro_batches
    assert micro.private
    assert micro.summary == ("float32[8, 16]: 128 NaN, 0 infinite",)
    model = nn.Linear(16, 2)
    work = Workload(model, loss_fn, [], SGD(model.parameters(), lr=0.1))
    for entry in (work, None):
        with pytest.raises(UsageError, match=r"privacy: true. It contains no batch") as caught:
            hg.replay(folder, entry)
        assert "statistics of the batch" in caught.value.cure


def test_a_summary_has_no_values() -> None:
    values = torch.zeros(8, 16)
    values[0, :3] = torch.tensor([math.nan, math.inf, 37.25])
    batch = {
        "x": values, "few": torch.tensor([37.25]), "ids": torch.tensor([NUMBER]), "zeros": torch.zeros(64),
        "names": np.array([WORD]), "prices": np.full(64, 3.0), "empty": torch.zeros(0), "word": WORD,
        "half": torch.full((64,), 60000.0).half(), "sparse": torch.eye(9).to_sparse(),
        "odd": np.full(64, 1.0).astype(">f8"),
    }  # fmt: skip
    assert summarize_batch(batch) == (
        "float32[8, 16]: 1 NaN, 1 infinite, largest magnitude at most 2^6",
        "float32[1]: 0 NaN, 0 infinite",
        "int64[1]",
        "float32[64]: 0 NaN, 0 infinite, largest magnitude 0",
        "numpy.str[1]",
        "numpy.float64[64]: 0 NaN, 0 infinite, largest magnitude at most 2^2",
        "float32[0]",
        "float16[64]: 0 NaN, 0 infinite, largest magnitude at most 2^16",
        "a tensor that cannot be read",
        "a tensor that cannot be read",
    )


def test_a_summary_is_short() -> None:
    assert len(summarize_batch([torch.ones(1)] * 1000)) == 100
