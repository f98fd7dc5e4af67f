"""A checkpoint is what torch.load reads back, or the file that was there before."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import halfguard as hg
from halfguard.checkpoints import saving
from halfguard.errors import PoisonedStateError, UsageError
from tests.checkpoints.helper import Tied, files, trained_state
from tests.support.cases import each
from tests.support.forks import FORKED

pytestmark = pytest.mark.usefixtures("device", "seed")


def load(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def test_a_plain_script_loads_everything(tmp_path: Path) -> None:
    state = trained_state()
    hg.save_checkpoint(tmp_path / "new" / "a.pt", state)
    saved = load(tmp_path / "new" / "a.pt")
    assert saved["epoch"] == 3
    for name in ("model", "ema", "optimizer", "scheduler", "scaler"):
        fresh = trained_state()[name]
        fresh.load_state_dict(saved[name])
    assert saved["model"]._metadata == state["model"].state_dict()._metadata
    weight = state["model"].head.weight.cpu()
    assert torch.equal(saved["model"]["head.weight"], weight)
    tied = saved["model"]["head.weight"].data_ptr(), saved["model"]["embed.weight"].data_ptr()
    assert tied[0] == tied[1]


def test_a_model_alone_is_saved_as_its_state_dict(tmp_path: Path) -> None:
    model = Tied()
    hg.save_checkpoint(tmp_path / "a.pt", torch.compile(model, backend="eager"))
    saved = load(tmp_path / "a.pt")
    assert saved.keys() == model.state_dict().keys()  # no _orig_mod
    assert list(files(tmp_path)) == ["a.pt"]


@pytest.mark.on_standin
def test_a_guard_is_saved_too(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    nan = torch.full((2, 2), torch.nan)
    for batch in (torch.ones(2, 2), nan, torch.ones(2, 2)):
        guard.step(lambda model, x: model(x).float().square().mean(), batch)
    hg.save_checkpoint(tmp_path / "a.pt", {"model": model, "guard": guard})
    guard.load_state_dict(load(tmp_path / "a.pt")["guard"])
    assert guard.step_index == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_poisoned_model_is_refused_by_name(tmp_path: Path, bad: float) -> None:
    state, path = trained_state(), tmp_path / "a.pt"
    hg.save_checkpoint(path, state)
    before = files(tmp_path)
    with torch.no_grad():
        state["model"].norm.weight[2] = bad
    with pytest.raises(PoisonedStateError) as caught:
        hg.save_checkpoint(path, state)
    assert caught.value.names == ("model.norm.weight",)
    assert f"model.norm.weight (1 {'NaN' if bad != bad else 'infinite'})" in str(caught.value)  # noqa: PLR0124
    assert "a.pt is unchanged" in str(caught.value)
    assert "Load the last good checkpoint" in caught.value.cure
    assert ("allow_infinite" in caught.value.cure) == (bad == bad)  # noqa: PLR0124
    assert files(tmp_path) == before


def test_the_state_of_an_optimizer_is_named_by_its_parameter(tmp_path: Path) -> None:
    state = trained_state()
    weight = state["model"].embed.weight
    state["optimizer"].state[weight]["exp_avg_sq"][0, 0] = torch.inf
    with pytest.raises(PoisonedStateError, match=r"optimizer\.embed\.weight\.exp_avg_sq"):
        hg.save_checkpoint(tmp_path / "a.pt", state)
    assert files(tmp_path) == {}


def test_numbers_are_checked_too(tmp_path: Path) -> None:
    state = trained_state()
    assert state["scheduler"].best == float("inf")  # intended: no metric has been seen yet
    hg.save_checkpoint(tmp_path / "a.pt", state | {"best": float("inf")})
    with pytest.raises(PoisonedStateError, match=r"history\.1 \(1 NaN\)"):
        hg.save_checkpoint(tmp_path / "b.pt", {"history": [1.0, float("nan")]})
    state["optimizer"].param_groups[0]["lr"] = float("inf")
    with pytest.raises(PoisonedStateError, match=r"optimizer\.param_groups\.0\.lr"):
        hg.save_checkpoint(tmp_path / "c.pt", state)
    assert list(files(tmp_path)) == ["a.pt"]


@pytest.mark.on_standin
def test_values_too_large_for_the_storage_format_are_refused(tmp_path: Path) -> None:
    model, path = Tied(), tmp_path / "half.pt"
    hg.save_checkpoint(path, {"model": model}, dtype=torch.float16)
    saved = load(path)["model"]
    assert {t.dtype for t in saved.values()} == {torch.float16, torch.int64}
    assert saved["head.weight"].data_ptr() == saved["embed.weight"].data_ptr()
    before = files(tmp_path)
    with torch.no_grad():
        model.norm.bias[0] = 65520.0
    with pytest.raises(PoisonedStateError, match=r"model\.norm\.bias \(1 beyond 65504\)") as caught:
        hg.save_checkpoint(path, {"model": model}, dtype=torch.float16)
    assert "save without dtype" in caught.value.cure
    assert files(tmp_path) == before
    hg.save_checkpoint(path, {"model": model}, dtype=torch.bfloat16)
    with torch.no_grad():
        model.norm.bias[0] = 65519.0  # rounds to 65504
    hg.save_checkpoint(path, {"model": model}, dtype=torch.float16)
    assert load(path)["model"]["norm.bias"][0] == 65504


def test_the_file_itself_is_checked(tmp_path: Path) -> None:
    """Below the limit in float64, but torch rounds twice on the way to float16, and gets infinity."""
    state = {"a": torch.tensor([65519.9999999], dtype=torch.float64)}
    assert state["a"].to(torch.float16).isinf().all()
    with pytest.raises(PoisonedStateError, match=r"a \(1 infinite\)"):
        hg.save_checkpoint(tmp_path / "a.pt", state, dtype=torch.float16)
    assert files(tmp_path) == {}


def test_an_optimizer_is_not_stored_in_half(tmp_path: Path) -> None:
    state = trained_state()
    for optimizer in (state["optimizer"], state["optimizer"].state_dict()):
        with pytest.raises(UsageError, match="contains an optimizer"):
            hg.save_checkpoint(tmp_path / "a.pt", {"optimizer": optimizer}, dtype=torch.float16)
    with pytest.raises(UsageError, match=r"cannot be stored as torch\.int8"):
        hg.save_checkpoint(tmp_path / "a.pt", {"a": torch.ones(1)}, dtype=torch.int8)


def test_intended_infinities(tmp_path: Path) -> None:
    state = {"model": {"mask": torch.tensor([0.0, -torch.inf]), "weight": torch.ones(2)}}
    with pytest.raises(PoisonedStateError, match=r'allow_infinite=\["model.mask"\]'):
        hg.save_checkpoint(tmp_path / "a.pt", state)
    hg.save_checkpoint(tmp_path / "a.pt", state, allow_infinite=["*.mask"])
    state["model"]["mask"][0] = torch.nan
    with pytest.raises(PoisonedStateError, match="1 NaN"):
        hg.save_checkpoint(tmp_path / "a.pt", state, allow_infinite=["*.mask"])


@each(
    "make",
    [
        lambda: torch.ones(3, dtype=torch.complex64),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.ones(3, dtype=torch.float64),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.ones(()),
        lambda: torch.ones(3).to(torch.float8_e5m2),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_every_kind_of_tensor_is_checked(tmp_path: Path, make: Any) -> None:
    tensor = make()
    hg.save_checkpoint(tmp_path / "a.pt", {"t": tensor, "empty": torch.ones(0)})
    values = tensor.values() if tensor.layout is torch.sparse_csr else tensor
    values = tensor._values() if tensor.layout is torch.sparse_coo else values
    values.view(-1).view(torch.uint8)[:].fill_(0xFF)  # every bit set is a NaN in all of them
    with pytest.raises(PoisonedStateError, match=r"t \("):
        hg.save_checkpoint(tmp_path / "a.pt", {"t": tensor})


Point = namedtuple("Point", "x y")


@each(
    ("value", "kind"),
    [
        (argparse.Namespace(lr=1), "argparse.Namespace"),
        (numpy.ones(3), "numpy.ndarray"),
        (Point(1, 2), "Point"),
        (print, "builtin_function_or_method"),
        (torch.empty(2, device="meta"), "meta device"),
    ],
)
def test_what_a_script_could_not_load_is_refused(tmp_path: Path, value: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=kind) as caught:
        hg.save_checkpoint(tmp_path / "a.pt", {"model": Tied(), "args": [value]})
    assert "args.0" in str(caught.value)
    assert files(tmp_path) == {}


def test_numbers_of_numpy_become_plain(tmp_path: Path) -> None:
    state = {"loss": numpy.float64(0.5), "step": numpy.int64(3), "w": torch.ones(1)}
    hg.save_checkpoint(tmp_path / "a.pt", state)
    assert (load(tmp_path / "a.pt")["loss"], load(tmp_path / "a.pt")["step"]) == (0.5, 3)


def write_to_a_full_disk(path: Path, answers: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        hg.save_checkpoint(path, {"w": torch.full((100_000,), 2.0)})
    except Exception as error:  # noqa: BLE001
        answers.send(str(error))


@pytest.mark.slow
def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    hg.save_checkpoint(path, {"w": torch.ones(10)})
    before = files(tmp_path)
    answers, theirs = FORKED.Pipe(duplex=False)
    process = FORKED.Process(target=write_to_a_full_disk, args=(path, theirs))
    process.start()
    theirs.close()
    assert answers.recv()  # whatever torch says of a write that failed
    process.join()
    assert files(tmp_path) == before


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    old, busy, young = (tmp_path / f".a.pt.{n}.tmp" for n in ("old", "busy", "young"))
    long_ago = time.time() - 3600
    for left in (old, busy, young):
        left.write_bytes(b"half a checkpoint")
        if left is not young:
            os.utime(left, (long_ago, long_ago))
    with busy.open("rb") as file:
        saving.lock_while_writing(file)
        hg.save_checkpoint(path, {"w": torch.ones(1)})
        assert sorted(files(tmp_path)) == [".a.pt.busy.tmp", ".a.pt.young.tmp", "a.pt"]
    os.utime(young, (long_ago, long_ago))
    hg.save_checkpoint(path, {"w": torch.ones(1)})
    assert sorted(files(tmp_path)) == ["a.pt"]
