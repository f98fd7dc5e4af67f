"""A run with 16-bit weights that will stall is announced before it does, by layer; a healthy one is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from halfguard.guard.watching.weight_updates import future_rates, measure_lost_updates
from halfguard.numerics.lost_updates import FROZEN, freezing_step
from halfguard.precision.master_weights import MasterWeights
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("seed")

STEPS, MEASURED_AT = 120, 20


@dataclass
class Run:
    """The forecast made at one step, and the steps at which layers really stopped to learn."""

    announced: dict[str, int]
    stalled: dict[str, int]


def train(seed: int, dtype: torch.dtype, rate: float, floor: float) -> Run:
    """Train a small model in 16 bits, with a cosine schedule from ``rate`` to ``floor`` times that."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, eps=1e-4, weight_decay=0.0)
    scheduler = CosineAnnealingLR(optimizer, STEPS, eta_min=rate * floor)
    names = {id(p): name for name, p in model.named_parameters() if p.dim() == 2}
    x = torch.randn(64, 8).to(dtype)
    y = x.float().sum(1, keepdim=True).sin()
    run = Run({}, {})
    for step in range(STEPS):
        optimizer.zero_grad()
        noise = 0.1 * torch.randn(64, 1)
        (model(x).float() - y - noise).square().mean().backward()
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        for name in names.values():
            same = (before[name] == model.get_parameter(name)).float().mean().item()
            if same >= FROZEN:
                run.stalled.setdefault(name, step)
        if step == MEASURED_AT:
            run.announced = forecast(optimizer, scheduler, names)
        scheduler.step()
    return run


def forecast(optimizer: Optimizer, scheduler: Any, names: dict[int, str]) -> dict[str, int]:
    measured = measure_lost_updates(optimizer)
    assert measured is not None
    parameters, lost = measured
    rates = future_rates(scheduler, STEPS - MEASURED_AT - 1)
    found = {}
    for parameter, margins in zip(parameters, lost.margins(), strict=True):
        step = freezing_step(margins, rates)
        if step is not None and id(parameter) in names:
            found[names[id(parameter)]] = MEASURED_AT + step
    return found


@pytest.mark.parametrize("seed_value", range(10))
def test_a_run_that_stalls_is_announced_with_its_layers(seed_value: int) -> None:
    run = train(seed_value, torch.bfloat16, rate=2e-3, floor=0.0)
    assert run.stalled
    assert min(run.stalled.values()) > MEASURED_AT  # it was told before
    assert run.announced.keys() == run.stalled.keys()
    for name, step in run.stalled.items():
        assert abs(run.announced[name] - step) <= 0.2 * STEPS, (run.announced, run.stalled)


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("seed_value", range(10))
def test_a_healthy_run_is_not_announced(seed_value: int) -> None:
    run = train(seed_value, torch.float16, rate=2e-3, floor=0.3)
    assert run.stalled == {}
    assert run.announced == {}


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.SGD(p, lr=1e-3), lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9)],
)
def test_sgd(make: Any) -> None:
    weight = nn.Parameter(torch.ones(1000, dtype=torch.float16))
    optimizer = make([weight])
    weight.grad = torch.cat(
        [torch.full((600,), 0.1), torch.full((300,), 1.0), torch.zeros(100)]
    ).half()
    optimizer.step()
    measured = measure_lost_updates(optimizer)
    assert measured is not None
    (margins,) = measured[1].margins()
    assert (margins.updates, margins.lost) == (900, int((weight[:900] == 1).sum()))


def test_masters_and_fp32_weights_lose_nothing() -> None:
    model = nn.Linear(4, 4).half()
    optimizer = MasterWeights(torch.optim.AdamW(model.parameters()))
    model(torch.ones(1, 4).half()).sum().backward()
    optimizer.step()
    assert measure_lost_updates(optimizer) is None


def test_measuring_makes_no_host_sync_and_a_constant_number_of_operations() -> None:
    totals = []
    for number in (5, 200):
        weights = [nn.Parameter(torch.ones(10, dtype=torch.bfloat16)) for _ in range(number)]
        optimizer = torch.optim.AdamW(weights)
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        with OpCounter() as counter:
            measure_lost_updates(optimizer)
        totals.append(counter.total)
        assert counter.host_syncs == 0
    assert totals[0] == totals[1]


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_the_rates_to_come_are_those_that_come() -> None:
    def fresh() -> Any:
        optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
        warm = LinearLR(optimizer, total_iters=5)
        return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, 20)], [5])

    scheduler = fresh()
    for _ in range(3):
        scheduler.step()
    told = future_rates(scheduler, 15)
    come = [scheduler.optimizer.param_groups[0]["lr"]]
    for _ in range(15):
        scheduler.step()
        come.append(scheduler.optimizer.param_groups[0]["lr"])
    assert told == pytest.approx(come)
    constant = LambdaLR(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), lambda _: 1.0)
    assert future_rates(constant, 3) == [0.1] * 4
