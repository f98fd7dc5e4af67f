"""A run with 16-bit weights that will stall is announced before it does, by layer; a healthy one is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from halfguard.guard.watching.weight_updates import (
    PlannedRates,
    WeightUpdates,
    _is_early,
    future_rates,
    measure_lost_updates,
)
from halfguard.numerics.lost_updates import FROZEN, freezing_step
from halfguard.precision.master_weights import MasterWeights
from tests.guard.watching.half_weights import FALLING, FINE, false_alarms, missed
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("seed")

STEPS, MEASURED_AT = 120, 20


@dataclass
class Run:
    """The forecast made at one step, and the steps at which layers really stopped to learn."""

    announced: dict[str, int]
    stalled: dict[str, int]


def train(seed: int) -> Run:
    """Train a small model in 16 bits, with a cosine schedule."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-4, weight_decay=0.0)
    scheduler = CosineAnnealingLR(optimizer, STEPS)
    names = {id(p): name for name, p in model.named_parameters() if p.dim() == 2}
    x = torch.randn(64, 8).bfloat16()
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
    run = train(seed_value)
    assert run.stalled
    assert min(run.stalled.values()) > MEASURED_AT  # it was told before
    assert run.announced.keys() == run.stalled.keys()
    for name, step in run.stalled.items():
        assert abs(run.announced[name] - step) <= 0.2 * STEPS, (run.announced, run.stalled)


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


# -- the watch announces it


@pytest.mark.slow
@pytest.mark.parametrize("name", FALLING)
def test_a_run_that_stalls_is_announced_before(name: str) -> None:
    assert missed(name) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_a_healthy_run_is_not(name: str) -> None:
    assert false_alarms(name) == ""


def test_the_plan_of_rates_is_made_once_and_followed() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = AdamW([weight], lr=1.0)
    calls = []

    def factor(step: int) -> float:
        calls.append(step)
        return 0.5**step

    scheduler = LambdaLR(optimizer, factor)
    planned = PlannedRates(optimizer, [scheduler])
    assert planned.ahead(0, 10, 4) == [1.0, 0.5, 0.25, 0.125, 0.0625]
    made = len(calls)
    optimizer.step()
    scheduler.step()
    made += 1
    assert planned.ahead(0, 11, 4)[:2] == [0.5, 0.25]
    assert len(calls) == made
    optimizer.param_groups[0]["lr"] = 0.1  # somebody else set it: the plan is made anew
    assert planned.ahead(0, 12, 4)[0] == 0.1


def test_freezing_at_the_end_of_a_schedule_is_no_fault() -> None:
    falling = [1 - step / 100 for step in range(101)]
    assert not _is_early(falling, 90, 1.0, step=0)
    assert _is_early(falling, 50, 1.0, step=0)
    assert _is_early([1.0] * 10 + [0.01] * 90, 10, 1.0, step=0)
    assert not _is_early([*falling, *reversed(falling)], 90, 1.0, step=0)  # torch's cosine


def test_masters_and_fp32_weights_are_not_measured(seed: object) -> None:
    model = nn.Linear(4, 4)
    half = nn.Linear(4, 4).half()
    for own, optimizer in (
        (model, AdamW(model.parameters())),
        (half, MasterWeights(AdamW(half.parameters()))),
    ):
        with WeightUpdates(own, [optimizer], []).measuring() as measured:
            own(torch.ones(2, 4, dtype=own.weight.dtype)).sum().backward()
            optimizer.step()
        assert measured.parts == []
