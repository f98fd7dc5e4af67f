"""The planted material is what it says: faults fail in FP16 only, drifts overflow where they say.

The tests sample; ``python -m tests.test_planted [seed ...]`` checks everything, in some minutes per seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from benchmarks.models.planted import (
    DRIFTING,
    FAULTS,
    HEALTHY_RUNS,
    PERIODIC,
    STABLE,
    Drift,
    Drifting,
    Fault,
    Healthy,
    Periodic,
    is_held_out,
)
from benchmarks.models.planted.base import source_of
from benchmarks.models.planted.loops import (
    CALIBRATION,
    agrees,
    fails,
    first_overflow,
    learns,
    nonfinite_lines,
    train,
)


@pytest.fixture(autouse=True)
def own_generator() -> Iterator[None]:
    """Keep the generator of other tests: the jobs seed the global one, as users do."""
    with torch.random.fork_rng():
        yield


def by_name(items: Sequence[Any], every: int = 1) -> list[Any]:
    return [pytest.param(item, id=item.name) for item in items[::every]]


def test_counts() -> None:
    counts = [len(group) for group in (FAULTS, PERIODIC, DRIFTING, STABLE, HEALTHY_RUNS)]
    assert counts == [40, 5, 20, 20, 20]
    assert sum(fault.in_loss for fault in FAULTS) == 20
    assert len({fault.architecture for fault in FAULTS}) >= 12
    assert len({fault.loss for fault in FAULTS if fault.in_loss}) >= 8
    assert [fault.every for fault in PERIODIC] == [2, 5, 10, 25, 50]


def test_names_are_unique_and_a_third_is_held_out() -> None:
    for group in (FAULTS, DRIFTING, STABLE):
        names = [item.name for item in group]
        assert len(set(names)) == len(names)
        assert 0.2 <= sum(map(is_held_out, names)) / len(names) <= 0.45


@pytest.mark.parametrize("fault", by_name((*FAULTS, *PERIODIC)))
def test_lines_are_unique_in_their_file(fault: Fault) -> None:
    source = source_of(fault.job).read_text()
    assert [source.count(line) for line in (fault.line, *fault.also)] == [1] * (1 + len(fault.also))
    assert source.splitlines()[fault.line_number - 1].strip() == fault.line


@pytest.mark.parametrize("item", by_name((*FAULTS, *PERIODIC, *HEALTHY_RUNS), every=3))
def test_jobs_are_small_and_repeatable(item: Fault | Healthy) -> None:
    first, second = item.job(3), item.job(3)
    weights = list(first.model.parameters())
    assert sum(p.numel() for p in weights) < 100_000
    assert all(map(torch.equal, weights, second.model.parameters()))
    torch.manual_seed(0)
    loss = first.loss_of(next(first.take(1)))
    torch.manual_seed(0)
    assert torch.equal(loss, second.loss_of(next(second.take(1))))


def check_fault(fault: Fault, seed: int = 0) -> None:
    single, half = (train(fault.job, seed, half=half) for half in (False, True))
    assert learns(single), single
    assert fails(half, single), half
    assert nonfinite_lines(fault.job, seed) <= {fault.line, *fault.also}


def check_periodic(fault: Periodic, seed: int = 0) -> None:
    single, half = (train(fault.job, seed, half=half) for half in (False, True))
    assert learns(single), single
    loud = [step for step in range(200) if (step + 1) % fault.every == 0]
    assert [s for s in half.skipped if s >= CALIBRATION] == [s for s in loud if s >= CALIBRATION]
    assert nonfinite_lines(fault.job, seed, steps=fault.every) == {fault.line}


def check_drifting(drift: Drifting, seed: int = 0) -> None:
    step, layer = drift.first_overflow(seed)
    assert 150 <= step <= 600
    assert layer in dict(drift.make(seed)[0].named_modules())


def check_stable(drift: Drift, seed: int = 0) -> None:
    assert first_overflow(drift, seed) is None


def check_healthy(healthy: Healthy, seed: int = 0) -> None:
    single, half = (train(healthy.job, seed, half=half) for half in (False, True))
    assert learns(single), single
    assert agrees(half, single), half


CHECKS: list[tuple[Sequence[Any], Callable[..., None], int]] = [
    (FAULTS, check_fault, 3),
    (PERIODIC, check_periodic, 2),
    (DRIFTING, check_drifting, 4),
    (STABLE, check_stable, 5),
    (HEALTHY_RUNS, check_healthy, 4),
]
SAMPLE = [
    pytest.param(check, item, id=f"{check.__name__} {item.name}")
    for group, check, every in CHECKS
    for item in group[::every]
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "item"), SAMPLE)
def test_an_item_is_what_it_says(check: Callable[..., None], item: Any) -> None:
    check(item)


def main(seeds: Sequence[int]) -> int:
    """Check all of the material and print what is not as it says."""
    torch.set_num_threads(1)
    wrong = 0
    for group, check, _ in CHECKS:
        for item in group:
            for seed in seeds:
                try:
                    check(item, seed)
                except AssertionError as error:
                    wrong += 1
                    print(
                        f"{check.__name__} {item.name} seed {seed}: {str(error)[:200]}", flush=True
                    )
        print(f"{check.__name__}: {len(group)} checked, {wrong} wrong so far", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main([int(seed) for seed in sys.argv[1:]] or [0]) > 0)
