"""A run without faults is bitwise equal to the bare loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from halfguard.guard.guard import Guard
from halfguard.guard.watching.watching import sampled_step
from tests.guard import healthy_runs
from tests.guard.healthy_runs import BOTH, HEAL
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device, host_waits
from tests.support.models import MODELS, OPTIMIZERS, bare_step, batches, differences, loss_fn, make
from tests.support.pairs import parametrize_pairs

pytestmark = pytest.mark.usefixtures("device")

STEPS = 300
# Small enough for 300 steps with growth and without an overflow: skipping is tested elsewhere.
SCALE, GROWTHS = 1024.0, 3


@pytest.mark.on_standin
@parametrize_pairs(
    name=[pytest.param(n, marks=pytest.mark.slow) if n != "mlp-batchnorm" else n for n in MODELS],
    optimizer=OPTIMIZERS,
    accumulate=[1, pytest.param(4, marks=pytest.mark.slow)],
)
def test_bitwise_the_bare_loop(
    name: str, optimizer: str, accumulate: int, seed: Callable[[int], None]
) -> None:
    steps = STEPS if chosen_device().type == "cpu" else STEPS // 3
    data = batches(steps * accumulate)
    windows = [data[i : i + accumulate] for i in range(0, len(data), accumulate)]

    seed(3)
    bare = make(name)
    bare_optimizer = OPTIMIZERS[optimizer](bare.parameters())
    scaler = torch.amp.GradScaler(
        chosen_device().type, init_scale=SCALE, growth_interval=steps // GROWTHS
    )
    for window in windows:
        bare_step(bare, bare_optimizer, scaler, window, max_norm=1.0)

    seed(3)
    model = make(name)
    guarded_optimizer = OPTIMIZERS[optimizer](model.parameters())
    config = {
        "clip": {"max_norm": 1.0},
        "scale": {"init": SCALE, "growth_interval": steps // GROWTHS},
        "accumulate": accumulate,
        "spike": {"sigma": 1000.0},
        "recovery": {"every": 50},
    }
    guard = Guard(model, guarded_optimizer, config)
    for batch in data:
        guard.step(loss_fn, batch)

    summary = guard.summary()
    assert summary.applied == summary.steps == len(windows)
    assert differences(bare.state_dict(), model.state_dict()) == []
    assert differences(bare_optimizer.state_dict(), guarded_optimizer.state_dict()) == []
    assert scaler.get_scale() == guard.scaler.get_scale()
    assert scaler._get_growth_tracker() == guard.scaler._get_growth_tracker()


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.on_standin
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_other_precisions_too(precision: str, seed: Callable[[int], None]) -> None:
    data = batches(60)
    seed(3)
    bare = make("mlp-batchnorm")
    bare_optimizer = OPTIMIZERS["adamw-foreach"](bare.parameters())
    off = torch.amp.GradScaler(chosen_device().type, enabled=False)
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    for batch in data:
        bare_step(bare, bare_optimizer, off, [batch], 1.0, dtype=dtype)

    seed(3)
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["adamw-foreach"](model.parameters())
    guard = Guard(model, optimizer, {"precision": precision, "clip": {"max_norm": 1.0}})
    for batch in data:
        assert guard.step(loss_fn, batch)
    assert differences(bare.state_dict(), model.state_dict()) == []
    assert differences(bare_optimizer.state_dict(), optimizer.state_dict()) == []


# -- watch and heal
EVERY = 16  # its first sample is step 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", healthy_runs.NAMES[::4])
def test_watch_and_heal_leave_a_healthy_run_alone(name: str) -> None:
    assert healthy_runs.faults(name, BOTH) == ""


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
