"""Asked for and got, on a CPU, for every framework; the truth comes from a real step of that framework.

The model under test writes down the dtype of its own matrix product, of its weights, and the state of
autocast while the framework trains it. Nothing of doctor's takes part in that.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import halfguard as hg
from halfguard.diagnosis.model.effective import resolve_precision
from halfguard.errors import UsageError
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import codes, cured, found
from tests.support import quiet

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("framework")]


@dataclass
class Truth:
    """What a model saw of itself: dtypes of product and weight, and whether autocast was on."""

    seen: list[tuple[torch.dtype, torch.dtype, bool]] = field(default_factory=list)

    @property
    def name(self) -> str:
        product, weight, autocast = self.seen[-1]
        short = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
        if product is torch.float32:
            return "fp32"
        if weight is torch.float32:
            return f"{short[product]}-mixed"
        return f"{short[product]}-{'weights' if autocast else 'true'}"


class Witness(nn.Module):
    """A linear map that writes down what it computes in."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth, self.norm = truth, nn.BatchNorm1d(4)
        self.weight = nn.Parameter(torch.full((4, 1), 0.5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        product = nn.functional.dropout(self.norm(x), 0.5) @ self.weight
        on = torch.is_autocast_enabled("cpu")
        self.truth.seen.append((product.dtype, self.weight.dtype, on))
        return {"loss": product.float().square().mean()}


class Module(lightning.LightningModule):
    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.inner = Witness(truth)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss: Tensor = self.inner(batch)["loss"]
        self.log("loss", loss)
        assert self.trainer is not None
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)["loss"]


Job = Callable[[Truth, Path], tuple[nn.Module, Callable[[], Diagnosis], Callable[[], None]]]


def plain(dtype: torch.dtype | None, *, half: bool = False) -> Job:
    def job(truth: Truth, _: Path) -> Any:
        model = Witness(truth)
        if half:
            model.half()
        asked = {torch.float16: "fp16-mixed", torch.bfloat16: "bf16-mixed", None: "fp32"}[dtype]
        asked = "fp16-weights" if half else asked
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), data().to(model.weight.dtype)
        region = torch.autocast("cpu", dtype or torch.float16, enabled=dtype is not None)

        def examine() -> Diagnosis:
            with region:
                return hg.doctor(model, optimizer, precision=asked, loss=loss, batch=x)

        def train() -> None:
            with region:
                value = loss(model, x)
            value.backward()
            optimizer.step()

        return model, examine, train

    return job


def with_lightning(precision: str, **more: Any) -> Job:
    def job(truth: Truth, folder: Path) -> Any:
        options = quiet.LIGHTNING | (more or {"precision": precision})
        trainer = lightning.Trainer(max_steps=1, default_root_dir=folder, **options)
        module = Module(truth)
        loader: Any = torch.utils.data.DataLoader(list(data()), batch_size=4)  # type: ignore[arg-type]

        def examine() -> Diagnosis:
            return hg.doctor(module, trainer=trainer, precision=precision, batch=data())

        return module, examine, lambda: trainer.fit(module, loader)

    return job


def with_accelerate(mixed_precision: str, *, prepare_first: bool = False) -> Job:
    def job(truth: Truth, _: Path) -> Any:
        accelerator = Accelerator(mixed_precision=mixed_precision, cpu=True)
        model: Any = Witness(truth)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepare_first:
            model, optimizer = accelerator.prepare(model, optimizer)

        def examine() -> Diagnosis:
            return hg.doctor(model, optimizer, trainer=accelerator, loss=loss, batch=data())

        def train() -> None:
            prepared, its_optimizer = accelerator.prepare(model, optimizer)
            accelerator.backward(loss(prepared, data()))
            its_optimizer.step()

        return model, examine, train

    return job


def with_transformers(*, arguments_only: bool = False, **precision: bool) -> Job:
    def job(truth: Truth, folder: Path) -> Any:
        args = TrainingArguments(
            max_steps=1, logging_nan_inf_filter=False, **quiet.transformers(folder) | precision
        )
        model = Witness(truth)
        trainer = Trainer(model=model, args=args, train_dataset=[{"x": row} for row in data()])

        def examine() -> Diagnosis:
            if arguments_only:
                return hg.doctor(model, trainer=args, batch={"x": data()})
            return hg.doctor(trainer=trainer, batch={"x": data()})

        return model, examine, trainer.train

    return job


def really_fp16() -> list[Any]:
    return [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))]


CASES: dict[str, tuple[Job, str, str]] = {
    "plain fp16": (plain(torch.float16), "fp16-mixed", "fp16-mixed"),
    "plain bf16": (plain(torch.bfloat16), "bf16-mixed", "bf16-mixed"),
    "plain off": (plain(None), "fp32", "fp32"),
    "plain fp16 weights": (plain(torch.float16, half=True), "fp16-weights", "fp16-weights"),
    "lightning 16-mixed": (with_lightning("16-mixed"), "fp16-mixed", "bf16-mixed"),
    "lightning bf16-mixed": (with_lightning("bf16-mixed"), "bf16-mixed", "bf16-mixed"),
    "lightning 16-true": (with_lightning("16-true"), "fp16-true", "fp16-true"),
    "lightning bf16-true": (with_lightning("bf16-true"), "bf16-true", "bf16-true"),
    "lightning 32-true": (with_lightning("32-true"), "fp32", "fp32"),
    "lightning plugin": (
        with_lightning("16-mixed", plugins=really_fp16()),
        "fp16-mixed",
        "fp16-mixed",
    ),
    "accelerate fp16": (with_accelerate("fp16"), "fp16-mixed", "fp32"),
    "accelerate bf16": (with_accelerate("bf16"), "bf16-mixed", "bf16-mixed"),
    "accelerate bf16 prepared": (
        with_accelerate("bf16", prepare_first=True),
        "bf16-mixed",
        "bf16-mixed",
    ),
    "accelerate no": (with_accelerate("no"), "fp32", "fp32"),
    "transformers fp16": (with_transformers(fp16=True), "fp16-mixed", "fp32"),
    "transformers bf16": (with_transformers(bf16=True), "bf16-mixed", "bf16-mixed"),
    "transformers neither": (with_transformers(), "fp32", "fp32"),
    "arguments fp16": (with_transformers(fp16=True, arguments_only=True), "fp16-mixed", "fp32"),
    "arguments bf16": (
        with_transformers(bf16=True, arguments_only=True),
        "bf16-mixed",
        "bf16-mixed",
    ),
    "arguments neither": (with_transformers(arguments_only=True), "fp32", "fp32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_doctor_tells_is_what_training_does(case: str, tmp_path: Path) -> None:
    job, asked, got = CASES[case]
    truth = Truth()
    model, examine, train = job(truth, tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn, python = torch.get_rng_state(), random.getstate()

    diagnosis = examine()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert random.getstate() == python
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(after[name].dtype is value.dtype for name, value in before.items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())

    truth.seen.clear()
    train()
    assert truth.name == got
    assert (diagnosis.effective.asked, diagnosis.effective.got) == (asked, got)
    assert ("HD101" in codes(diagnosis)) == (asked != got)
    assert bool(diagnosis.effective.why) == (asked != got)


@pytest.mark.parametrize(
    ("case", "severity"),
    [("accelerate fp16", "note"), ("arguments fp16", "note"), ("lightning 16-mixed", "warning")],
)
def test_fp32_instead_of_fp16_on_a_cpu_is_a_note(case: str, severity: str, tmp_path: Path) -> None:
    diagnosis = CASES[case][0](Truth(), tmp_path)[1]()
    assert found(diagnosis, "HD101").severity == severity
    assert diagnosis.ok == (severity == "note")


def test_fp32_beside_a_scaler_is_a_warning() -> None:
    accelerator = Accelerator(mixed_precision="fp16", cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu")
    diagnosis = hg.doctor(Witness(Truth()), trainer=accelerator, loss=loss, batch=data())
    assert found(diagnosis, "HD101").severity == "warning"


@pytest.mark.parametrize("case", ["lightning 16-mixed", "accelerate fp16", "arguments fp16"])
def test_the_cure_gives_what_it_says(case: str, tmp_path: Path) -> None:
    finding = found(CASES[case][0](Truth(), tmp_path)[1](), "HD101")
    AcceleratorState._reset_state(reset_partial_state=True)
    if case == "lightning 16-mixed":
        trainer = cured(finding, Trainer=lightning.Trainer)["trainer"]
        diagnosis = hg.doctor(Module(Truth()), trainer=trainer, precision="16-mixed", batch=data())
    elif case == "accelerate fp16":
        trainer = cured(finding, Accelerator=Accelerator)["accelerator"]
        diagnosis = hg.doctor(Witness(Truth()), trainer=trainer, loss=loss, batch=data())
    else:
        assert finding.cure == "TrainingArguments(bf16=True)"
        _, examine, _ = with_transformers(bf16=True, arguments_only=True)(Truth(), tmp_path)
        diagnosis = examine()
    assert diagnosis.findings == ()


def test_pure_half_in_lightning_is_cured_by_mixed_precision(tmp_path: Path) -> None:
    _, examine, _ = with_lightning("16-true")(Truth(), tmp_path)
    diagnosis = examine()
    assert codes(diagnosis) == ["HD108", "HG207", "HG402"]
    trainer = cured(found(diagnosis, "HG207"), Trainer=lightning.Trainer)["trainer"]
    assert hg.doctor(Module(Truth()), trainer=trainer, batch=data()).findings == ()


def test_lightning_forgets_what_it_was_asked_for_and_doctor_does_not_invent_it() -> None:
    trainer = lightning.Trainer(accelerator="cpu", precision="16-mixed", logger=False)
    diagnosis = hg.doctor(Module(Truth()), trainer=trainer, batch=data())
    assert diagnosis.effective.asked is None
    assert 'pass precision="16-mixed"' in str(diagnosis)


def test_arguments_are_examined_beside_an_accelerator_of_another_precision(tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=True, report_to=[])
    other = Accelerator(mixed_precision="no", cpu=True)
    diagnosis = hg.doctor(Witness(Truth()), trainer=args, batch={"x": data()})
    assert diagnosis.effective.got == "bf16-mixed"
    assert other.mixed_precision == AcceleratorState().mixed_precision == "no"


def test_a_checkpoint_that_lightning_wrote(tmp_path: Path) -> None:
    module, _, train = CASES["lightning plugin"][0](Truth(), tmp_path)
    train()
    path = tmp_path / "last.ckpt"
    module.trainer.save_checkpoint(path)  # type: ignore[union-attr, operator]
    scaler = torch.amp.GradScaler("cpu")
    assert hg.doctor(module, scaler=scaler, checkpoint=path).ok
    saved = torch.load(path, weights_only=True)
    del saved["MixedPrecision"]
    assert codes(hg.doctor(module, scaler=scaler, checkpoint=saved)) == ["HG309"]


def test_anomaly_detection_of_a_trainer() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu", plugins=really_fp16(), detect_anomaly=True, logger=False
    )
    assert codes(hg.doctor(Module(Truth()), trainer=trainer)) == ["HG307"]


def test_a_module_that_optimizes_by_hand_is_not_run() -> None:
    module, trainer = Module(Truth()), lightning.Trainer(accelerator="cpu", logger=False)
    module.automatic_optimization = False
    before = copy.deepcopy(module.state_dict())
    diagnosis = hg.doctor(module, trainer=trainer, batch=data())
    assert diagnosis.ok
    assert diagnosis.effective is None
    assert "manual optimization" in found(diagnosis, "HD100").why
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert hg.doctor(module, trainer=trainer, batch=data(), loss=lambda m, x: loss(m.inner, x)).ok


class Prepared(Module):
    """A module whose training step needs what its hooks have set."""

    def setup(self, stage: str) -> None:
        self.scale = 2.0

    def on_fit_start(self) -> None:
        self.offset = torch.ones(1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return super().training_step(batch, index) * self.scale + self.offset


def test_what_lightnings_hooks_set_is_missing_until_they_are_called() -> None:
    module, trainer = Prepared(Truth()), lightning.Trainer(accelerator="cpu", logger=False)
    finding = found(hg.doctor(module, trainer=trainer, batch=data()), "HD100")
    assert "no attribute 'scale'" in finding.message
    assert "hooks" in finding.why
    cured(finding, model=module)
    assert hg.doctor(module, trainer=trainer, batch=data()).ok
    plain_mistake = hg.doctor(Module(Truth()), trainer=trainer, batch=torch.zeros(4, 5)).findings[0]
    assert plain_mistake.cure.startswith("Run the same call without halfguard")


def test_an_error_of_another_kind_is_not_cured_by_lightnings_hooks() -> None:
    class Mistaken(Prepared):
        def training_step(self, batch: Tensor, index: int) -> Tensor:
            raise KeyError("labels")

    trainer = lightning.Trainer(accelerator="cpu", logger=False)
    finding = hg.doctor(Mistaken(Truth()), trainer=trainer, batch=data()).findings[0]
    assert finding.code == "HD100"
    assert "setup" not in finding.cure


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_whatever_a_lightning_module_computes_in_has_a_name(weights: torch.dtype) -> None:
    trainer = lightning.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False)
    module = Module(Truth()).to(weights)
    diagnosis = hg.doctor(module, trainer=trainer, batch=data().to(weights))
    assert diagnosis.effective.got == {torch.float32: "bf16-mixed"}.get(weights, "bf16-weights")


def test_lightnings_own_note_of_its_dtype_is_taken_back() -> None:
    trainer = lightning.Trainer(accelerator="cpu", precision="16-true", logger=False)
    module = Module(Truth())
    hg.doctor(module, trainer=trainer, batch=data())
    assert module.dtype is torch.float32


@pytest.mark.parametrize(
    ("word", "name"),
    [
        (16, "fp16-mixed"),
        ("16-mixed", "fp16-mixed"),
        ("no", "fp32"),
        (torch.bfloat16, "bf16-mixed"),
        ("64-true", "fp64"),
        (None, None),
    ],
)
def test_words_for_precisions(word: Any, name: str | None) -> None:
    assert resolve_precision(word) == name


def test_an_unknown_word() -> None:
    with pytest.raises(UsageError, match="'fp12' is unknown"):
        resolve_precision("fp12")
