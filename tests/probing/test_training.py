"""A step that is repeated at a lower loss scale is the same step: same random numbers, same buffers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from halfguard.precision_names import Precision
from halfguard.probing.training import RunSetting, train
from halfguard.workload import Workload

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.on_standin
def test_a_repeated_step_draws_the_same_numbers_from_every_generator(seed: object) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    drawn: list[tuple[float, float, float]] = []

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        drawn.append((random.random(), float(np.random.random()), torch.rand(()).item()))
        out: Tensor = 30 * drawn[-1][0] * model(batch)
        return out.float().square().mean()

    batches = [torch.randn(6, 4) for _ in range(3)]
    workload = Workload(model, loss, batches, torch.optim.SGD(model.parameters(), lr=1e-6))
    run = train(workload, RunSetting(Precision.FP16_MIXED, scale=2.0**24), 3)
    assert run.failure is None
    assert run.scales[0] < 2.0**23, "the first step was repeated at least twice"
    assert len(drawn) > len(run.losses)
    assert len(set(drawn)) == len(run.losses), (
        "one set of numbers per step, however often it is repeated"
    )
    assert model[1].num_batches_tracked.item() == 3  # type: ignore[operator, union-attr]


def test_a_job_that_clips_is_clipped(seed: object) -> None:
    model = nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    workload = Workload(
        model, lambda m, x: 100 * m(x).sum(), [torch.ones(2, 4)], optimizer, clip_norm=0.5
    )
    assert train(workload, RunSetting(Precision.FP16_MIXED, scale=16.0), 1).failure is None
    assert (model.weight - before).norm().item() == pytest.approx(0.5, rel=1e-3)
