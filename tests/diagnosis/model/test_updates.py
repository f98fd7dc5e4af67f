from __future__ import annotations

import pytest
import torch
from torch import nn

from halfguard.diagnosis.model import updates
from halfguard.diagnosis.model.training_setup import MeasuredGradients, TrainingSetup
from halfguard.diagnosis.model.updates import lost_share


def setup_of(optimizer: torch.optim.Optimizer) -> TrainingSetup:
    return TrainingSetup(optimizers=(optimizer,))


def weights(value: float, dtype: torch.dtype = torch.float16) -> nn.Parameter:
    return nn.Parameter(torch.full((4,), value, dtype=dtype))


@pytest.mark.parametrize(
    ("rate", "lost"),
    [(1e-4, 1.0), (4e-4, 1.0), (2e-3, 0.0)],  # times 0.23; below 1 float16 rounds 2.4e-4 away
)
def test_adam_is_judged_by_its_rate_at_a_weight_of_one(rate: float, lost: float) -> None:
    one = weights(1.0)
    assert lost_share(setup_of(torch.optim.Adam([one], lr=rate)).parameters, None) == lost
    small = weights(1e-3)
    assert lost_share(setup_of(torch.optim.Adam([small], lr=rate)).parameters, None) == 0.0


def test_sgd_is_judged_by_measured_gradients_by_size() -> None:
    one = weights(1.0)
    parameters = setup_of(torch.optim.SGD([one], lr=0.01)).parameters
    assert lost_share(parameters, None) is None
    gradients = MeasuredGradients({id(one): torch.tensor([1.0, 1.0, 1.0, 0.01])}, lost=0.0)
    assert lost_share(parameters, gradients) == pytest.approx(0.01 / 3.01)
    with torch.no_grad():
        for gradient, moves in ((1.0, True), (0.01, False)):
            changed = one[0] - (0.01 * torch.tensor(gradient)).half()
            assert bool(changed != one[0]) is moves


def test_momentum_makes_updates_larger_and_an_unused_weight_has_none() -> None:
    one = weights(1.0)
    gradients = MeasuredGradients({id(one): torch.full((4,), 0.01)}, lost=0.0)
    plain = setup_of(torch.optim.SGD([one], lr=0.01))
    heavy = setup_of(torch.optim.SGD([one], lr=0.01, momentum=0.9))
    assert lost_share(plain.parameters, gradients) == 1.0
    assert lost_share(heavy.parameters, gradients) == 0.0
    assert lost_share(plain.parameters, MeasuredGradients({}, lost=0.0)) is None


class Lion(torch.optim.Adam):
    """Has betas, and moves every weight by its rate."""


class Prodigy(torch.optim.Adam):
    """Multiplies its rate by an estimate."""


def test_lion_moves_by_its_full_rate() -> None:
    rate, one = 5e-4, weights(1.0)  # a quarter of it is rounded away
    assert lost_share(setup_of(torch.optim.Adam([one], lr=rate)).parameters, None) == 1.0
    assert lost_share(setup_of(Lion([one], lr=rate)).parameters, None) == 0.0


def test_an_optimizer_that_finds_its_rate_is_not_judged() -> None:
    one = weights(1.0)
    assert lost_share(setup_of(Prodigy([one], lr=1.0)).parameters, None) is None
    own = torch.optim.SGD([{"params": [one], "d": 1e-6}], lr=1.0)
    known = MeasuredGradients({id(one): torch.ones(4)}, lost=0.0)
    assert lost_share(setup_of(own).parameters, known) is None


def test_the_highest_rate_of_a_schedule_counts() -> None:
    one = weights(1.0)
    optimizer = torch.optim.Adam([one], lr=1e-5)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=10)
    optimizer.param_groups[0]["lr"] = 1e-7
    assert lost_share(setup_of(optimizer).parameters, None) == 0.0


@pytest.mark.parametrize("momentum", [True, False])
def test_a_rate_that_is_cycled_is_not_known(momentum: bool) -> None:
    optimizer = torch.optim.Adam([weights(1.0)], lr=1e-5)
    scheduler = torch.optim.lr_scheduler.CyclicLR(
        optimizer, base_lr=1e-6, max_lr=1e-2, cycle_momentum=momentum
    )
    assert lost_share(setup_of(optimizer).parameters, None) is None
    other = torch.optim.Adam([weights(1.0)], lr=1e-5)
    torch.optim.lr_scheduler.CosineAnnealingLR(other, 10)
    assert lost_share(setup_of(other).parameters, None) == 1.0
    del scheduler


def test_large_weights_are_compared_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = weights(1.0)
    parameters = setup_of(torch.optim.SGD([one], lr=0.01)).parameters
    gradients = MeasuredGradients({id(one): torch.tensor([1.0, 1.0, 1.0, 0.01])}, lost=0.0)
    monkeypatch.setattr(updates, "_CHUNK", 3)
    sizes = [len(part) for _, part in updates._chunks(parameters[0], 0.01, gradients)]
    assert sizes == [3, 1]
    assert lost_share(parameters, gradients) == pytest.approx(0.01 / 3.01)


def test_a_lack_of_memory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    parameters = setup_of(torch.optim.Adam([weights(1.0)], lr=1e-5)).parameters
    monkeypatch.setattr(torch, "full_like", fail)
    assert lost_share(parameters, None) is None
