"""A schedule that freezes 16-bit weights is announced before it does, and no healthy one is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from halfguard.guard.watching.weight_updates import PlannedRates, WeightUpdates, _is_early
from halfguard.precision.master_weights import MasterWeights
from tests.guard.watching.half_weights import FALLING, FINE, false_alarms, missed


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
    masters = MasterWeights(AdamW(half.parameters()))
    optimizer = AdamW(model.parameters())
    for weights in (WeightUpdates(model, [optimizer], []), WeightUpdates(half, [masters], [])):
        assert weights._optimizers == []
