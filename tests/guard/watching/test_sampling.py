"""One step of each interval is sampled, at a place that depends on nothing but the interval."""

from __future__ import annotations

import random

import torch

from halfguard.guard.watching.watching import Sampling, sampled_step
from tests.support.cases import each


@each("every", [1, 2, 7, 200])
def test_each_interval_has_one_sampled_step(every: int) -> None:
    sampling, found = Sampling(every), []
    for step in range(50 * every):
        if sampling.is_due(step):
            found.append(step)
            sampling.done(step)
    assert [step // every for step in found] == list(range(50))


def test_the_distance_varies() -> None:
    steps = [sampled_step(index, 200) % 200 for index in range(100)]
    assert len(set(steps)) > 60
    assert min(steps) < 20
    assert max(steps) > 180


def test_a_step_of_no_use_is_replaced_by_the_next() -> None:
    sampling, first = Sampling(10), sampled_step(0, 10)
    assert sampling.is_due(first)
    assert sampling.is_due(first + 1)
    sampling.done(first + 1)
    assert not sampling.is_due(first + 2)


def test_no_random_state_is_used() -> None:
    before = random.getstate(), torch.get_rng_state()
    first = [sampled_step(index, 50) for index in range(20)]
    random.seed(1)
    assert [sampled_step(index, 50) for index in range(20)] == first
    random.setstate(before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
