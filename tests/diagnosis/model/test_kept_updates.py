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
from halfguard.diagnosis.model.optimizer_trial import keeps_small_updates
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


class NeedsMore(WithMasters):
    def __init__(self, params: Iterable[Tensor], rates: list[float]) -> None:
        super().__init__(params, lr=rates[0])


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [WithMasters, Kahan, RoundsAtRandom])
def test_optimizers_that_keep_small_updates(kind: type[OwnOptimizer], dtype: torch.dtype) -> None:
    model = net().to(dtype)
    optimizer = kind(model.parameters(), lr=1e-6)
    before = copy.deepcopy(model.state_dict())
    assert keeps_small_updates(optimizer, dtype)
    diagnosis = hg.doctor(model, optimizer, loss=loss, batch=batch().to(dtype))
    assert {one.code for one in diagnosis.problems} <= {"HD112"}
    assert not optimizer.state
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", HALVES)
def test_optimizers_that_lose_them(dtype: torch.dtype) -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=dtype))]
    for optimizer in (OwnOptimizer(weights), SGD(weights, lr=1e-3), AdamW(weights)):
        assert not keeps_small_updates(optimizer, dtype)


def test_an_optimizer_that_cannot_be_made_again_is_not_judged() -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=torch.float16))]
    assert not keeps_small_updates(NeedsMore(weights, [1e-3]), torch.float16)


def test_a_scaler_refuses_half_weights_whatever_the_optimizer_does() -> None:
    model = net().half()
    scaler = torch.amp.GradScaler("cpu")
    diagnosis = hg.doctor(model, WithMasters(model.parameters()), scaler=scaler)
    assert found(diagnosis, "HD102").severity == "error"


def test_copies_of_the_loop_are_master_weights() -> None:
    model = net().half()
    copies = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
    diagnosis = hg.doctor(model, Adam(copies), batch=batch().half())
    assert diagnosis.ok
    assert "copies of 4 half weights" in found(diagnosis, "HD106").message


def test_other_values_are_no_copies() -> None:
    model = net().half()
    others = [torch.full_like(p, 0.3, dtype=torch.float32) for p in model.parameters()]
    optimizer = Adam([p.requires_grad_() for p in others])
    assert found(hg.doctor(model, optimizer), "HD106").severity == "error"


@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_a_fused_adam_whose_second_moment_stays_0(size: float) -> None:
    model = net().half()
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)

    def sized(model: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = model(x)
        return output.float().sum() * size / len(x)

    diagnosis = hg.doctor(model, optimizer, loss=sized, batch=batch().half())
    codes = [one.code for one in diagnosis.problems]
    assert ("HD105" in codes) == (size < 1)
