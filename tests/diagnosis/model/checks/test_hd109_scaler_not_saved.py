from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import halfguard as hg
from halfguard.errors import UsageError
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, half_step, net


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
    assert codes(diagnosis) == ["HD109"]
    finding = found(diagnosis, "HD109")
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
    assert codes(hg.doctor(scaler=scaler, checkpoint=states)) == ["HD109"]
    whole = {**states, "MixedPrecision": scaler.state_dict()}
    assert hg.doctor(scaler=scaler, checkpoint=whole).ok


def test_the_state_of_a_scaler_that_was_off_is_none() -> None:
    _, optimizer, scaler = trained()
    off = torch.amp.GradScaler("cpu", enabled=False).state_dict()
    states = {"optimizer": optimizer.state_dict(), "scaler": off}
    assert codes(hg.doctor(scaler=scaler, checkpoint=states)) == ["HD109"]


def test_folders_of_the_trainer(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu")
    (tmp_path / "optimizer.pt").touch()
    assert codes(hg.doctor(scaler=scaler, checkpoint=tmp_path)) == ["HD109"]
    (tmp_path / "scaler.pt").touch()
    assert hg.doctor(scaler=scaler, checkpoint=tmp_path).ok


def test_weights_alone_and_runs_without_a_scale_need_none() -> None:
    model, optimizer, scaler = trained()
    assert hg.doctor(scaler=scaler, checkpoint=model.state_dict()).ok
    assert hg.doctor(model, checkpoint={"optimizer": optimizer.state_dict()}).ok


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint"):
        hg.doctor(scaler=torch.amp.GradScaler("cpu"), checkpoint=tmp_path / "last.pt")
    for name in ("last.pt", "last.safetensors"):  # also where nothing is looked for in it
        with pytest.raises(UsageError, match="no checkpoint"):
            hg.doctor(net(), checkpoint=tmp_path / name)
    with pytest.raises(UsageError, match="no checkpoint '3'"):
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
