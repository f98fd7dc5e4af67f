"""Half weights whose updates are kept: by copies of the loop, or by an optimizer of the user's own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import halfguard as hg
from halfguard.diagnosis.model.training_setup import find_masters, keeps_small_updates
from tests.diagnosis.model.checks.helper import batch, found, loss, net

HALVES = (torch.float16, torch.bfloat16)


class OwnOptimizer(Optimizer):
    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    def update(self, p: Tensor, change: Tensor, state: dict[str, Any]) -> None:
        p.add_(change.to(p.dtype))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self.update(p, -group["lr"] * p.grad.float(), self.state[p])


class WithMasters(OwnOptimizer):
    def update(self, p: Tensor, change: Tensor, state: dict[str, Any]) -> None:
        master = state.setdefault("master", p.float().clone())
        p.copy_(master.add_(change))


class Kahan(OwnOptimizer):
    def update(self, p: Tensor, change: Tensor, state: dict[str, Any]) -> None:
        wanted = change.to(p.dtype) + state.get("rest", torch.zeros_like(p))
        before = p.clone()
        p.add_(wanted)
        state["rest"] = wanted - (p - before)


class RoundsAtRandom(OwnOptimizer):
    def update(self, p: Tensor, change: Tensor, state: dict[str, Any]) -> None:
        exact = p.float() + change
        spacing = (torch.nextafter(p, torch.zeros_like(p)) - p).abs().float()
        p.copy_(exact + (torch.rand_like(exact) - 0.5) * spacing)


class MySGD(SGD):
    """torch's SGD under another name."""


class AdamWithoutCorrection(Optimizer):
    """Adam whose first steps are several times its rate, as they are in BertAdam."""

    def __init__(self, params: Iterable[Tensor], lr: float, eps: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})

    def add(self, p: Tensor, change: Tensor) -> None:
        p.add_(change.to(p.dtype))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                gradient = p.grad.float()
                first, second = self.state[p].setdefault("moments", torch.zeros(2, *p.shape))
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                self.add(p, first / (second.sqrt() + group["eps"]) * -group["lr"])


class AdamOnMasters(AdamWithoutCorrection):
    def add(self, p: Tensor, change: Tensor) -> None:
        p.copy_(self.state[p].setdefault("master", p.float().clone()).add_(change))


class KeepsSettings(WithMasters):
    """It takes an argument that it keeps beside its defaults."""

    def __init__(self, params: Iterable[Tensor], lr: float, power: int) -> None:
        super().__init__(params, lr=lr)
        self.power = power


class Wrapper:
    """An optimizer's owner, with what a loop calls and nothing more."""

    def __init__(self, base: Optimizer) -> None:
        self.base, self.param_groups, self.state = base, base.param_groups, base.state

    def step(self) -> None:
        self.base.step()


class StepsTheGivenOne(OwnOptimizer):
    """It is made of another optimizer, which the trial must not step."""

    def __init__(self, params: Iterable[Tensor], base: Optimizer, lr: float = 1e-3) -> None:
        super().__init__(params, lr=lr)
        self.base = base

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()


class NeedsMore(WithMasters):
    def __init__(self, params: Iterable[Tensor], rates: list[float]) -> None:
        super().__init__(params, lr=rates[0])


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [WithMasters, Kahan, RoundsAtRandom, AdamOnMasters])
def test_optimizers_that_keep_small_updates(
    kind: type[OwnOptimizer | AdamOnMasters], dtype: torch.dtype
) -> None:
    model = net().to(dtype)
    optimizer = kind(model.parameters(), lr=1e-6)
    before = copy.deepcopy(model.state_dict())
    assert keeps_small_updates(optimizer, dtype)
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().to(dtype))
    assert {one.code for one in diagnosis.problems} <= {"HG207"}
    assert not optimizer.state
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", HALVES)
def test_optimizers_that_lose_them(dtype: torch.dtype) -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=dtype))]
    for optimizer in (
        OwnOptimizer(weights),
        SGD(weights, lr=1e-3),
        AdamW(weights),
        MySGD(weights, lr=1e-4, momentum=0.9),
        MySGD(weights, lr=1e-4, momentum=0.99),
        AdamWithoutCorrection(weights, lr=1e-6),
    ):
        assert not keeps_small_updates(optimizer, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_long_steps_of_a_small_rate_are_lost_as_well(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    for own, torchs in (
        (
            MySGD(model.parameters(), lr=1e-4, momentum=0.9),
            SGD(model.parameters(), lr=1e-4, momentum=0.9),
        ),
        (
            AdamWithoutCorrection(model.parameters(), lr=1e-6),
            Adam(model.parameters(), lr=1e-6, eps=1e-4),
        ),
    ):
        reports = [hg.doctor(model, o, loss=loss, batch=batch().to(dtype)) for o in (own, torchs)]
        assert found(reports[0], "HG402").severity == found(reports[1], "HG402").severity


def test_an_optimizer_that_cannot_be_made_again_is_not_judged() -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=torch.float16))]
    assert not keeps_small_updates(NeedsMore(weights, [1e-3]), torch.float16)


def test_settings_that_an_optimizer_keeps_itself() -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=torch.float16))]
    assert keeps_small_updates(KeepsSettings(weights, 1e-3, power=2), torch.float16)


def test_wrappers_are_not_judged_and_never_stepped() -> None:
    model = net().half()
    wrapper: Any = Wrapper(SGD(model.parameters(), lr=1e-2))
    assert not keeps_small_updates(wrapper, torch.float16)
    assert found(hg.doctor(model, wrapper, batch=batch().half()), "HG402")
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    outer = StepsTheGivenOne([weight], SGD([weight], lr=1.0))
    assert not keeps_small_updates(outer, torch.float16)
    assert weight.tolist() == [1.0] * 4


def test_a_scaler_refuses_half_weights_whatever_the_optimizer_does() -> None:
    model = net().half()
    scaler = torch.amp.GradScaler("cpu")
    diagnosis = hg.doctor(model, WithMasters(model.parameters()), scaler=scaler)
    assert found(diagnosis, "HG401").severity == "error"


def test_copies_of_the_loop_are_master_weights() -> None:
    model = net().half()
    copies = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    diagnosis = hg.doctor(model, Adam(copies), batch=batch().half())
    assert diagnosis.ok
    assert "copies of 4 16-bit weights" in found(diagnosis, "HD106").message


def test_other_values_are_no_copies() -> None:
    model = net().half()
    others = [torch.full_like(p, 0.3, dtype=torch.float32) for p in model.parameters()]
    optimizer = Adam([p.requires_grad_() for p in others])
    assert found(hg.doctor(model, optimizer), "HD106").severity == "error"


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("dtype", HALVES)
def test_parameters_that_half_ones_replaced_are_no_copies(dtype: torch.dtype) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    half = copy.deepcopy(model).to(dtype)
    assert found(hg.doctor(half, optimizer, batch=batch().to(dtype)), "HD106").severity == "error"
    model.load_state_dict(half.state_dict(), assign=True)
    assert found(hg.doctor(model, optimizer, batch=batch().to(dtype)), "HD106").severity == "error"


@pytest.mark.usefixtures("seed")
def test_copies_have_more_digits_after_the_first_step() -> None:
    model = net().half()
    copies = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    optimizer = Adam(copies)
    for one in copies:
        one.grad = torch.ones_like(one)
    optimizer.step()
    for one, p in zip(copies, model.parameters(), strict=True):
        p.data.copy_(one)
    diagnosis = hg.doctor(model, optimizer, batch=batch().half())
    assert found(diagnosis, "HD106").severity == "note"


def test_a_half_weight_in_the_optimizer_has_no_copy_in_it() -> None:
    model = net().half()
    average = [p.detach().float().clone() for p in model.parameters()]
    optimizer = SGD([*model.parameters(), *average], lr=1e-4)
    assert not find_masters(model, optimizer)


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_a_fused_adam_whose_second_moment_stays_0(size: float) -> None:
    model = net().half()
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)

    def sized(model: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = model(x)
        return output.float().sum() * size / len(x)

    diagnosis = hg.doctor(model, optimizer, loss=sized, batch=batch().half())
    codes = [one.code for one in diagnosis.problems]
    assert ("HG403" in codes) == (size < 1)
