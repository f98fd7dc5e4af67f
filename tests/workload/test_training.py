"""The plain training step is the loop of torch's own documentation; and the one number for a run's losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from halfguard.step.random_state import seeded
from halfguard.workload import TrainingStep, Workload, final_loss
from tests.support.cases import each
from tests.support.devices import chosen_device

pytestmark = pytest.mark.usefixtures("device")


def job(precision: Precision, factor: float = 1.0) -> Workload:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    batches = [torch.randn(6, 4) for _ in range(5)]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = factor * model(batch)
        return out.float().square().mean()

    workload = Workload(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=0.1))
    workload.store_weights_as(precision)
    return workload


@each("cuda_rules", [True, False])
@each("precision", Precision)
def test_a_step_is_bitwise_the_loop_written_by_hand(precision: Precision, cuda_rules: bool) -> None:
    with seeded(0):
        ours = job(precision)
        step = TrainingStep(ours, precision, cuda_rules=cuda_rules)
        losses = [step(batch).item() for batch in ours.take(5)]
    with seeded(0):
        theirs, expected = job(precision), []
        scaler = torch.amp.GradScaler(chosen_device().type, enabled=precision.needs_loss_scale)
        for batch in theirs.take(5):
            theirs.optimizer.zero_grad()
            with (
                autocast_like_cuda(precision, chosen_device())
                if cuda_rules
                else autocast(precision, chosen_device().type)
            ):
                loss = theirs.loss_of(batch)
            scaler.scale(loss).backward()
            scaler.step(theirs.optimizer)
            scaler.update()
            expected.append(loss.item())
    assert losses == expected
    pairs = zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)


@pytest.mark.on_standin
def test_a_step_that_overflows_is_skipped_and_lowers_the_scale(seed: object) -> None:
    workload = job(Precision.FP16_MIXED, factor=3e4)
    step = TrainingStep(workload, Precision.FP16_MIXED, init_scale=2.0**20)
    before = [p.clone() for p in workload.model.parameters()]
    assert math.isfinite(step(workload.batches[0]).item())  # type: ignore[index]
    assert step.scaler.get_scale() == 2.0**19
    after = workload.model.parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.on_standin
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16_MIXED])
def test_gradients_are_clipped_after_they_are_unscaled(precision: Precision, seed: object) -> None:
    workload = job(precision)
    workload.clip_norm = 0.01
    workload.optimizer = torch.optim.SGD(workload.model.parameters(), lr=1.0)
    before = [p.clone() for p in workload.model.parameters()]
    TrainingStep(workload, precision, init_scale=2.0**12)(workload.batches[0])  # type: ignore[index]
    after = workload.model.parameters()
    moved = torch.stack([(old - new).norm() for old, new in zip(before, after, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert workload.fresh().clip_norm == 0.01


@each(
    ("losses", "expected"),
    [
        ([5.0], 5.0),
        ([9.0, 1.0], 1.0),
        ([9.0] * 8 + [1.0, 3.0], 2.0),
        ([1.0, 1.0, 1.0, 1.0, math.inf], math.inf),
    ],
)
def test_the_last_fifth_counts(losses: list[float], expected: float) -> None:
    assert final_loss(losses) == expected


def test_no_loss_is_no_number() -> None:
    assert math.isnan(final_loss([]))
