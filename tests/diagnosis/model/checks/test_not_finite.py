"""Results that are not finite: HD115 to HG601."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.models.zoo import HEALTHY, PLANTED_FAILURES, PlantedFailure, line_of
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import halfguard as hg
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net
from tests.support import quiet


class Poisoned(nn.Module):
    """Its loss is NaN in every second batch, and does not hurt the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = net(), 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        loss = self.net(x).square().mean()
        return {"loss": loss if self.calls % 2 else loss + math.nan * loss.detach()}


def arguments(folder: Path, **more: Any) -> Any:
    how = {"max_steps": 4, "logging_steps": 4, "per_device_train_batch_size": 1} | more
    return TrainingArguments(**quiet.transformers(folder) | how)


def logged(args: Any) -> float:
    trainer = Trainer(model=Poisoned(), args=args, train_dataset=[{"x": torch.ones(4)}] * 4)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("framework")
@pytest.mark.slow
def test_the_filter_hides_nan_and_without_it_nan_is_logged(tmp_path: Path) -> None:
    args, batch = arguments(tmp_path, bf16=True), {"x": torch.ones(2, 4)}
    diagnosis = hg.doctor(Poisoned(), trainer=args, batch=batch)
    assert codes(diagnosis) == ["HD115"]
    assert diagnosis.ok  # the filter is on by default
    assert math.isfinite(logged(args))
    cured(found(diagnosis, "HD115"), args=args)
    assert hg.doctor(Poisoned(), trainer=args, batch=batch).findings == ()
    assert math.isnan(logged(args))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("framework")
def test_half_weights_are_enough_and_fp32_is_not_concerned(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    assert hg.doctor(net(), trainer=args).ok
    assert codes(hg.doctor(net().bfloat16(), trainer=args)) == ["HD115", "HG402"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("framework")
def test_it_is_a_warning_where_the_loss_is_nan_already(tmp_path: Path) -> None:
    model = Poisoned()
    model.calls = 1
    diagnosis = hg.doctor(
        model, trainer=arguments(tmp_path, bf16=True), batch={"x": torch.ones(2, 4)}
    )
    assert found(diagnosis, "HD115").severity == "warning"


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Squared(nn.Module):
    """The square of about 300 is beyond FP16; a mean follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.last = nn.Linear(4, 4), Square(), nn.Linear(4, 1)
        nn.init.constant_(self.first.weight, 300.0)
        nn.init.constant_(self.last.weight, 0.0)
        nn.init.zeros_(self.first.bias)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.log1p(self.square(self.first(x))))


def examine(model: nn.Module, loss_fn: Any = loss, x: Tensor | None = None) -> Any:
    with torch.autocast("cpu", torch.float16):
        return hg.doctor(model, loss=loss_fn, batch=torch.ones(2, 4) if x is None else x)


@pytest.mark.usefixtures("seed")
def test_an_overflow_is_named_with_its_module_and_line_and_the_island_helps() -> None:
    model = Squared()
    finding = found(examine(model), "HG601")
    assert finding.severity == "error"
    assert finding.subject == "square"
    assert "the loss is nan" in finding.message
    assert "mul in square returned the first NaN or Inf" in finding.message
    assert "return x * x" in finding.message
    assert "In FP32 the result is finite" in finding.why
    cured(finding, model=model)
    assert "HG601" not in codes(examine(model))


@pytest.mark.usefixtures("seed")
def test_nothing_is_left_changed() -> None:
    model = Squared()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    drawn = torch.get_rng_state()
    examine(model)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.usefixtures("seed")
def test_a_half_model_without_autocast() -> None:
    model = Squared().half()
    finding = found(hg.doctor(model, loss=loss, batch=torch.ones(2, 4).half()), "HG601")
    assert finding.subject == "square"


def ignored_labels(model: nn.Module, x: Tensor) -> Tensor:
    labels = torch.full((len(x),), -100)
    return nn.functional.cross_entropy(model(x).float().expand(-1, 2), labels)


def test_what_fp32_does_not_cure_is_told() -> None:
    """Every label is ignored: 0 / 0 in any precision."""
    finding = found(examine(net(), ignored_labels, batch()), "HG601")
    assert "not finite in FP32 either" in finding.why
    assert "all labels ignored" in finding.cure
    assert "fp32_island" not in finding.cure


def test_bad_weights_are_named() -> None:
    model = net()
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    finding = found(examine(model, loss, batch()), "HG601")
    assert finding.subject == "2.weight"
    assert "2.weight" in finding.message
    assert "2.weight" in finding.cure


def overflow_in_the_loss(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x) * 60000 * 60000
    return output.float().mean()


def half_in_the_loss(model: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = model(x).half() * 60000 * 60000
    return output.float().mean()


def test_a_cast_in_the_code_itself_is_told() -> None:
    finding = found(examine(net(), half_in_the_loss, batch()), "HG601")
    assert "the code casts to 16-bit" in finding.why


def test_a_fault_in_the_loss_is_told_with_its_line() -> None:
    finding = found(examine(net(), overflow_in_the_loss, batch()), "HG601")
    assert "outside the model" in finding.message
    assert "test_not_finite.py" in finding.cure
    assert finding.subject is None


def test_masked_logits_are_healthy() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return torch.cat([out, torch.full_like(out, -torch.inf)], dim=-1)

    with torch.autocast("cpu", torch.float16):
        assert hg.doctor(Masked(), batch=batch()).ok
        bad = hg.doctor(
            nn.Sequential(Masked(), nn.Softplus(), nn.Threshold(9, torch.inf)), batch=batch()
        )
    assert "the output contains inf" in found(bad, "HG601").message


def test_a_constant_that_half_cannot_hold_is_to_blame() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Any:
            out = self.inner(x)
            return out.masked_fill(out > 9, -1e9)

    finding = found(examine(Filled(), loss, batch()), "HG101")
    assert "constant" in finding.why
    assert "torch.finfo(x.dtype).min" in finding.cure


def test_a_batch_that_raises_is_no_finding_of_this_kind() -> None:
    assert "HG601" not in codes(examine(net(), loss, torch.ones(2, 5)))


@pytest.mark.parametrize(
    "plant", [p for p in PLANTED_FAILURES if p.phase == "forward" and not p.compiled], ids=str
)
def test_planted_failures_are_found_with_their_line(plant: PlantedFailure) -> None:
    job = plant.make(0)
    finding = found(hg.doctor(job.model, loss=job.loss_fn, batch=job.batch), "HG601")
    if plant.kind == "op":
        _, line = line_of(plant)
        assert f":{line}: " in finding.message
        assert finding.subject == (plant.module or None)


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
def test_intended_infinities_are_healthy(name: str, dtype: torch.dtype | None) -> None:
    job = HEALTHY[name](0)
    with torch.autocast("cpu", dtype or torch.float16, enabled=dtype is not None):
        diagnosis = hg.doctor(job.model, loss=job.loss_fn, batch=job.batch)
    assert {"HG601", "HD118"}.isdisjoint(codes(diagnosis))


class Identity(nn.Module):
    """A matrix times a vector, which CUDA's autocast computes in half, and the CPU's in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.mv(self.weight, x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.product = net(), Identity()

    def forward(self, x: Tensor) -> Any:
        return self.product(self.inner(x).float().squeeze(1) * 1e7) / 1e7


def bce(model: nn.Module, x: Tensor) -> Tensor:
    p = torch.sigmoid(model(x).float())
    return nn.functional.binary_cross_entropy(p, torch.ones_like(p))


def test_an_overflow_on_the_gpu_alone_is_told_with_its_module() -> None:
    model = Scaled()
    with torch.autocast("cpu", torch.float16):
        assert loss(model, batch()).isfinite()
        finding = found(hg.doctor(model, loss=loss, batch=batch()), "HG601")
        assert finding.subject == "product"
        assert "in product returned the first NaN or Inf" in finding.message
        cured(finding, model=model)
        assert hg.doctor(model, loss=loss, batch=batch()).ok
    with hg.emulate_autocast("cuda"):
        assert loss(model, batch()).isfinite()


def test_what_cuda_refuses_is_told() -> None:
    with torch.autocast("cpu", torch.float16):
        finding = found(hg.doctor(net(), loss=bce, batch=batch()), "HG601")
    assert "unsafe to autocast" in finding.message
    assert "with_logits" in finding.cure


def test_without_autocast_there_is_nothing_to_repeat() -> None:
    assert codes(hg.doctor(net(), loss=bce, batch=batch())) == []
