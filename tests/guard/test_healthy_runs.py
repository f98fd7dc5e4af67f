"""A healthy run is the same with ``watch`` and ``heal`` and without: bitwise, no island, no further sync."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halfguard.guard.guard import Guard
from halfguard.guard.watching.watching import sampled_step
from tests.guard import healthy_runs
from tests.guard.healthy_runs import BOTH, HEAL, WATCH
from tests.support.counting import OpCounter
from tests.support.devices import host_waits
from tests.support.models import batches, loss_fn, make

CONFIGS: dict[str, dict[str, Any]] = {"watch": WATCH, "heal": HEAL}
EVERY = 16  # its first sample is step 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", healthy_runs.NAMES[::4])
def test_watch_and_heal_leave_a_healthy_run_alone(name: str) -> None:
    assert healthy_runs.faults(name, BOTH) == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", healthy_runs.NAMES[1::12])
@pytest.mark.parametrize("config", CONFIGS)
def test_each_alone_leaves_a_healthy_run_alone(name: str, config: str) -> None:
    assert healthy_runs.faults(name, CONFIGS[config]) == ""


def test_the_tests_above_run_at_least_20_models() -> None:
    assert len(healthy_runs.NAMES[::4]) >= 20


def _guarded(extra: dict[str, Any]) -> Guard:
    model = make("transformer")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return Guard(model, optimizer, {"scale": {"init": 64.0}} | extra)


@pytest.mark.usefixtures("seed", "between_looks")
def test_steps_between_samples_have_no_further_operation_and_no_sync() -> None:
    counts = []
    for extra in ({}, HEAL | {"watch": {"every": EVERY}}):
        guard, ops = _guarded(extra), list[tuple[int, int]]()
        for step, batch in enumerate(batches(EVERY)):
            with OpCounter() as counter:
                guard.step(loss_fn, batch)
            if step != sampled_step(0, EVERY):
                ops.append((counter.total, counter.host_syncs))
        counts.append(ops)
    assert counts[0] == counts[1]


@pytest.mark.usefixtures("accelerator", "between_looks")
def test_steps_between_samples_wait_for_nothing() -> None:
    counts = []
    start = sampled_step(0, EVERY) + 4  # the rows of the sampled step have been read
    for extra in ({}, HEAL | {"watch": {"every": EVERY}}):
        guard, data = _guarded(extra), batches(EVERY)
        for batch in data[:start]:
            guard.step(loss_fn, batch)
        counts.append(host_waits(lambda: _run(guard, data[start:])))  # noqa: B023
    assert start < EVERY - 4
    assert counts[0] == counts[1]


def _run(guard: Guard, data: list[Any]) -> None:
    for batch in data:
        guard.step(loss_fn, batch)
