"""The fourth example system fails as its README says, and is cured as its README says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lint.helper import codes, fix
from tests.support.docs import ROOT
from tests.support.modules import modules_of
from tests.support.programs import run_python

import halfguard as hg
from halfguard.diagnosis.doctor import doctor_workload
from halfguard.errors import UsageError
from halfguard.precision.emulation import emulate_autocast

FOLDER = ROOT / "examples" / "audio_lora"
MODULES = ("half_on_cpu", "model", "prepare", "workload", "train", "evaluate")
PROJECTOR = "base_model.model.projector.modules_to_save.default.weight"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("seed"),
    pytest.mark.filterwarnings("ignore"),  # of transformers and peft
    pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs Debian's espeak-ng"),
]


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The modules of the example, which import each other by name."""
    with modules_of(FOLDER, *MODULES) as found:
        yield found


def config(example: Any, name: str = "paper_r8", **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = example.train.read_config("--config", name)
    return config | {"steps": 2, "batch_size": 8, "run_dir": None} | changes


@pytest.mark.parametrize("checkpointing", [True, False])
def test_the_scaler_refuses_the_projector_with_and_without_checkpointing(
    example: Any, checkpointing: bool
) -> None:
    changes: Any = {"variant": "broken", "guard": None, "gradient_checkpointing": checkpointing}
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        example.train.main(config(example, **changes))


def test_the_guard_says_what_to_do_in_its_place(example: Any) -> None:
    with pytest.raises(UsageError, match="has float16 parameters") as caught:
        example.train.main(config(example, variant="broken"))
    assert "upcast_trainable" in str(caught.value)


def test_peft_makes_adapters_fp32_and_the_projector_not(example: Any) -> None:
    model = example.workload.make_model(example.prepare.load()[1], "broken")
    trained = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name, dtype in trained.items() if dtype is torch.float16} == {
        PROJECTOR,
        PROJECTOR.replace("weight", "bias"),
    }
    assert hg.upcast_trainable(model)[0] == PROJECTOR
    base = [p for p in model.parameters() if not p.requires_grad]
    assert {p.dtype for p in base} == {torch.float16}


def test_lint_is_the_first_to_tell_and_its_patch_trains(tmp_path: Path) -> None:
    text = (FOLDER / "unpatched.py").read_text()
    assert codes(text) == ["HG401"]
    patched = fix(text).data.decode()
    assert "halfguard.upcast_trainable(model)" in patched
    assert codes(patched) == []
    (tmp_path / "patched.py").write_text(patched)
    path = f"{ROOT / 'src'}:{FOLDER}"
    assert "train_runtime" in run_python(
        str(tmp_path / "patched.py"), cwd=tmp_path, PYTHONPATH=path
    )


def test_doctor_names_the_projector_and_foresees_the_nan(example: Any) -> None:
    diagnosis = doctor_workload(example.workload.broken(0), precision="fp16-mixed")
    found = {finding.code: finding for finding in diagnosis.findings}
    assert found["HG401"].subject == PROJECTOR
    assert "NaN after the first step" in found["HG403"].message + found["HG403"].why


def test_probe_cannot_see_the_projector_and_says_that_fp32_fails(example: Any) -> None:
    report = hg.probe(example.workload.broken(0), steps=2)
    (finding,) = report.findings
    assert finding.code == "HG601"
    assert PROJECTOR in finding.message


def test_doctor_and_probe_name_the_loud_features(example: Any) -> None:
    job = example.workload.loud(0)
    probed = [one.message for one in hg.probe(job, steps=1).findings if one.code == "HG601"]
    assert any("in base_model.model.features" in message for message in probed)
    found = {one.code: one for one in doctor_workload(job, precision="fp16-mixed").findings}
    assert "base_model.model.features" in found["HG601"].message


def test_without_scaler_and_autocast_the_first_step_leaves_the_projector_infinite(
    example: Any,
) -> None:
    changes = {"optimizer": "adamw_torch", "steps": 1}
    with pytest.raises(UsageError, match=r"projector.weight \(\d+ infinite"):
        example.train.main(config(example, "paper_native", run_dir="unused", **changes))


def test_updates_of_an_fp16_projector_are_lost_where_fp32_keeps_all(example: Any) -> None:
    moved = {}
    for make in (example.workload.broken, example.workload.job):
        job = make(0)
        weight = job.model.get_parameter(PROJECTOR)
        before = weight.detach().clone()
        # A tenth of the learning rate: the last tenth of a linear schedule.
        optimizer = torch.optim.AdamW(example.workload.trainable(job.model), lr=1e-5, fused=True)
        job.loss_of(next(job.take(1))).backward()
        optimizer.step()
        moved[weight.dtype] = (weight != before).double().mean().item()
    assert moved[torch.float32] > 0.99
    assert moved[torch.float16] < 0.7


def test_a_half_base_trains_as_its_values_in_fp32(example: Any) -> None:
    losses = []
    for make in (example.workload.job, example.workload.half_base):
        job = make(0)
        calls: list[int] = []
        layer = job.model.get_submodule("base_model.model.language.model.layers.0.self_attn")
        layer.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        (batch,) = job.take(1)
        with emulate_autocast("cuda"):
            loss = job.loss_of(batch)
        (loss * 1024).backward()
        assert len(calls) == 2  # checkpointing computed it again
        assert all(p.grad.isfinite().all() for p in example.workload.trainable(job.model))
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_the_guarded_trainer_writes_a_checkpoint_that_evaluation_loads(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "metrics.json"
    changes: Any = {"run_dir": str(tmp_path), "metrics": str(written), "gradient_accumulation": 2}
    example.train.main(config(example, **changes))
    assert "2/2 steps applied" in capsys.readouterr().out
    example.evaluate.main(tmp_path / "fp16")
    nll = float(capsys.readouterr().out.split("nll ")[1].split(",")[0])
    assert nll == pytest.approx(json.loads(written.read_text())["nll"], rel=0.01)
    state = example.model.AudioLanguageModel.from_pretrained(tmp_path / "fp16").state_dict()
    assert {value.dtype for value in state.values()} == {torch.float16}


def test_loud_features_are_repeated_and_replay_finds_them(example: Any, tmp_path: Path) -> None:
    example.train.main(config(example, variant="loud", run_dir=str(tmp_path)))
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [row["action"] for row in rows if "action" in row] == ["retry_fp32"] * 2
    incident = str(tmp_path / "incidents" / "000000-r0")
    told = json.loads(run_python("-m", "halfguard", "replay", incident, "--json", cwd=FOLDER))
    assert told["culprit"]["module"] == "base_model.model.features"
    assert "base_model.model.features" in json.dumps(told["cure"])


def test_the_guarded_trainer_heals_the_features(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = {"skip": {"on_nonfinite": "retry_fp32"}, "heal": {}, "scale": {"init": 1024}}
    changes: Any = {"variant": "loud", "steps": 4, "guard": guard, "run_dir": str(tmp_path)}
    example.train.main(config(example, **changes))
    told = capsys.readouterr().out
    assert "4/4 steps applied (100.0%), 3 of them retried in FP32" in told
    assert "nll nan" not in told  # evaluation has the island too
    assert "- module: base_model.model.features" in (tmp_path / "plan.yaml").read_text()
