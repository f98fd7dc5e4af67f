"""A forward pass that is not finite is an error, with its operation, its line and a cure that was tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.models.zoo import HEALTHY, PLANTED_FAILURES, PlantedFailure, line_of
from torch import Tensor, nn

import halfguard as hg
from halfguard.errors import UsageError
from tests.diagnosis.model.checks.helper import batch, codes, cured, found, loss, net


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
    finding = found(examine(model), "HD116")
    assert finding.severity == "error"
    assert finding.subject == "square"
    assert "the loss is nan" in finding.message
    assert "mul in square made the first bad number" in finding.message
    assert "return x * x" in finding.message
    assert "In FP32 it is finite" in finding.why
    cured(finding, model=model)
    assert "HD116" not in codes(examine(model))


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
    finding = found(hg.doctor(model, loss=loss, batch=torch.ones(2, 4).half()), "HD116")
    assert finding.subject == "square"


def ignored_labels(model: nn.Module, x: Tensor) -> Tensor:
    labels = torch.full((len(x),), -100)
    return nn.functional.cross_entropy(model(x).float().expand(-1, 2), labels)


def test_what_fp32_does_not_cure_is_told() -> None:
    """Every label is ignored: 0 / 0 in any precision."""
    finding = found(examine(net(), ignored_labels, batch()), "HD116")
    assert "not finite in FP32 either" in finding.why
    assert "all labels ignored" in finding.cure
    assert "fp32_island" not in finding.cure


def test_bad_weights_are_named() -> None:
    model = net()
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    finding = found(examine(model, loss, batch()), "HD116")
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
    finding = found(examine(net(), half_in_the_loss, batch()), "HD116")
    assert "the code itself casts to 16 bits" in finding.why


def test_a_fault_in_the_loss_is_told_with_its_line() -> None:
    finding = found(examine(net(), overflow_in_the_loss, batch()), "HD116")
    assert "outside the model" in finding.message
    assert "test_hd116_not_finite.py" in finding.cure
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
    assert "the output contains inf" in found(bad, "HD116").message


def test_a_constant_that_half_cannot_hold_is_to_blame() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x: Tensor) -> Any:
            out = self.inner(x)
            return out.masked_fill(out > 9, -1e9)

    finding = found(examine(Filled(), loss, batch()), "HD100")
    assert "constant" in finding.why
    assert "torch.finfo(x.dtype).min" in finding.cure


def test_a_batch_that_raises_is_no_finding_of_this_kind() -> None:
    assert "HD116" not in codes(examine(net(), loss, torch.ones(2, 5)))
    with pytest.raises(UsageError):
        hg.doctor(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plant", [p for p in PLANTED_FAILURES if p.phase == "forward" and not p.compiled], ids=str
)
def test_planted_failures_are_found_with_their_line(plant: PlantedFailure) -> None:
    job = plant.make(0)
    finding = found(hg.doctor(job.model, loss=job.loss_fn, batch=job.batch), "HD116")
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
    assert {"HD116", "HD117", "HD118"}.isdisjoint(codes(diagnosis))
