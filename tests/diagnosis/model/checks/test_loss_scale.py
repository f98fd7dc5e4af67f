"""The loss scaler: HG309, HG214 to HG307."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, loss, net
from tests.support.devices import device_type

pytestmark = pytest.mark.usefixtures("device", "seed")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    half_step(model, optimizer, scaler, batch())
    return model, optimizer, scaler


def test_a_resumed_run_starts_at_the_initial_scale(tmp_path: Path) -> None:
    model, optimizer, scaler = trained()
    path = tmp_path / "last.pt"
    checkpoint: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(checkpoint, path)
    diagnosis = hg.doctor(model, optimizer, scaler=scaler, checkpoint=path)
    assert codes(diagnosis) == ["HG309"]
    finding = found(diagnosis, "HG309")
    assert str(path) in finding.message
    assert torch.amp.GradScaler("cpu").get_scale() == 65536.0 != scaler.get_scale()

    cured(finding, checkpoint=checkpoint, scaler=scaler, path=path)
    assert hg.doctor(model, optimizer, scaler=scaler, checkpoint=path).findings == ()
    resumed = torch.amp.GradScaler("cpu")
    resumed.load_state_dict(torch.load(path, weights_only=True)["scaler"])
    assert resumed.get_scale() == scaler.get_scale()


def test_mappings_nested_lists_and_halfguards_own_scaler() -> None:
    model, optimizer, _ = trained()
    states = {"loops": {"optimizer_states": [optimizer.state_dict()]}}
    scaler = hg.GradScaler("cpu")
    half_step(model, optimizer, scaler, batch())
    assert codes(hg.doctor(scaler=scaler, checkpoint=states)) == ["HG309"]
    whole = {**states, "MixedPrecision": scaler.state_dict()}
    assert hg.doctor(scaler=scaler, checkpoint=whole).ok


def test_the_state_of_a_scaler_that_was_off_is_none() -> None:
    _, optimizer, scaler = trained()
    off = torch.amp.GradScaler("cpu", enabled=False).state_dict()
    states = {"optimizer": optimizer.state_dict(), "scaler": off}
    assert codes(hg.doctor(scaler=scaler, checkpoint=states)) == ["HG309"]


def test_folders_of_the_trainer(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu")
    (tmp_path / "optimizer.pt").touch()
    assert codes(hg.doctor(scaler=scaler, checkpoint=tmp_path)) == ["HG309"]
    (tmp_path / "scaler.pt").touch()
    assert hg.doctor(scaler=scaler, checkpoint=tmp_path).ok


def test_weights_alone_and_runs_without_a_scale_need_none() -> None:
    model, optimizer, scaler = trained()
    assert hg.doctor(scaler=scaler, checkpoint=model.state_dict()).ok
    assert hg.doctor(model, checkpoint={"optimizer": optimizer.state_dict()}).ok


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        hg.doctor(scaler=torch.amp.GradScaler("cpu"), checkpoint=tmp_path / "last.pt")
    for name in ("last.pt", "last.safetensors"):  # also where nothing is looked for in it
        with pytest.raises(UsageError, match="does not exist"):
            hg.doctor(net(), checkpoint=tmp_path / name)
    with pytest.raises(UsageError, match="checkpoint '3' does not exist"):
        hg.doctor(net(), checkpoint=3)  # type: ignore[arg-type]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harm"),)


def test_nothing_in_a_checkpoint_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UsageError, match="cannot be read without running code"):
        hg.doctor(scaler=torch.amp.GradScaler("cpu"), checkpoint=path)
    assert not Path("harm").exists()


ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.diagnosis.model.checks.sharded", str(rank), str(folder)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=720)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codes", "scales"),
    [
        ("fsdp1-plain-scaler", ["HG214"], [65536.0, 32768.0]),  # the ranks have parted
        ("fsdp1-cured", [], [32768.0, 32768.0]),
        ("fsdp2-plain-scaler", [], [32768.0, 32768.0]),
        ("fsdp2-early-optimizer", ["HD106"], [None, None]),
    ],
)
def test_two_ranks(
    name: str, codes: list[str], scales: list[float | None], ranks: list[dict[str, Any]]
) -> None:
    results = [rank[name] for rank in ranks]
    assert [result["codes"] for result in results] == [codes, codes]
    assert [result["got"] for result in results] == ["fp16-mixed", "fp16-mixed"]
    assert [result["scale"] for result in results] == scales


def gradients(scaler: torch.amp.GradScaler) -> float:
    """The largest gradient of the first layer for a loss that is small, in units of that loss."""
    model, tiny = net(), 1e-8
    with torch.autocast(device_type(), torch.float16):
        value = loss(model, batch()) * tiny
    scaler.scale(value).backward()
    return float(model[0].weight.grad.abs().max())


@pytest.mark.on_standin
def test_small_gradients_vanish_without_a_scale() -> None:
    assert gradients(torch.amp.GradScaler(device_type(), enabled=False)) == 0.0
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch())
        assert codes(diagnosis) == ["HG207"]
        scaler = cured(found(diagnosis, "HG207"))["scaler"]
        assert hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch()).ok
    assert gradients(scaler) > 0.0


@pytest.mark.parametrize(("size", "severity"), [(1e-8, "error"), (1.0, "note")])
def test_lost_gradients_are_measured(size: float, severity: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        diagnosis = hg.doctor(
            model, optimizer, loss=lambda model, x: size * loss(model, x), batch=batch()
        )
    finding = found(diagnosis, "HG207")
    assert finding.severity == severity
    assert (" 0.0%" in finding.message) == (severity == "note")


def test_without_a_loss_autocast_needs_a_scaler() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), torch.float16):
        assert found(hg.doctor(model, optimizer, batch=batch()), "HG207").severity == "error"


def test_a_loss_outside_of_autocast_has_the_loss_scale_as_its_gradient() -> None:
    def outside(module: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(device_type(), dtype=torch.float16):
            output = module(x)
        return output.square().mean()

    def in_fp32(module: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(device_type(), dtype=torch.float16):
            output = module(x)
        return output.float().square().mean()

    def diagnose(loss_fn: Any, scale: float) -> Diagnosis:
        model = net()
        optimizer = torch.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler(device_type(), init_scale=scale)
        return hg.doctor(
            model, optimizer, scaler=scaler, batch=batch(), loss=loss_fn, precision="fp16-mixed"
        )

    finding = found(diagnose(outside, 2.0**16), "HG115")
    assert "loss scale of 65,536 is Inf in float16" in finding.message
    assert float(torch.tensor(2.0**16).half()) == float("inf")
    for loss_fn, scale in ((outside, 2.0**15), (in_fp32, 2.0**16)):
        assert "HG115" not in codes(diagnose(loss_fn, scale))


def test_the_request_is_enough_where_nothing_was_run() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert codes(hg.doctor(model, optimizer, precision="fp16-mixed")) == ["HG207"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_precisions_need_none(dtype: torch.dtype) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), dtype, enabled=dtype is not torch.float32):
        assert hg.doctor(model, optimizer, loss=loss, batch=batch()).ok


def test_inference_needs_none() -> None:
    with torch.autocast(device_type(), torch.float16):
        assert hg.doctor(net(), batch=batch()).ok


def examined(scaler: torch.amp.GradScaler, dtype: torch.dtype = torch.float16) -> Diagnosis:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast(device_type(), dtype):
        return hg.doctor(model, optimizer, scaler=scaler, loss=loss, batch=batch())


@pytest.mark.on_standin
@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA the scaler stays on")
def test_a_scaler_for_cuda_where_there_is_none() -> None:
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = torch.amp.GradScaler()
    assert float(scaler.scale(torch.ones(()))) == 1.0
    diagnosis = examined(scaler)
    assert codes(diagnosis) == ["HD113"]
    finding = found(diagnosis, "HD113")
    assert "created for CUDA" in finding.why
    mended = cured(finding)["scaler"]
    assert float(mended.scale(torch.ones(()))) == 65536.0
    assert examined(mended).findings == ()


def test_switched_off_by_hand() -> None:
    diagnosis = examined(torch.amp.GradScaler(device_type(), enabled=False))
    assert "enabled=False" in found(diagnosis, "HD113").why


def test_bf16_may_have_one_that_is_off() -> None:
    assert examined(torch.amp.GradScaler(device_type(), enabled=False), torch.bfloat16).ok


def overflowing(model: nn.Module) -> Tensor:
    """A loss that is well, whose scaled gradient overflows and, times zero, becomes NaN."""
    with torch.autocast(device_type(), torch.float16):
        output: Tensor = model(torch.ones(4, 4))
        return (output.float() * 100).sum()


def test_detection_aborts_what_the_scaler_would_skip() -> None:
    model, scaler = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)),
        hg.GradScaler(device_type()),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autograd.set_detect_anomaly(True):
        diagnosis = hg.doctor(model, optimizer, scaler=scaler)
        assert codes(diagnosis) == ["HG307"]
        with (
            pytest.warns(UserWarning, match="Error detected"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            scaler.scale(overflowing(model)).backward()
        cured(found(diagnosis, "HG307"))
        assert hg.doctor(model, optimizer, scaler=scaler).ok
        optimizer.zero_grad()
        scaler.scale(overflowing(model)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 32768.0
    assert all(bool((p == 0).all()) for p in model.parameters())


def test_without_a_scaler_it_is_a_tool_like_another() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert hg.doctor(net()).ok
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        assert hg.doctor(net(), scaler=torch.amp.GradScaler(device_type())).ok
