"""A run without faults is bitwise equal to the bare loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from halfguard.guard.guard import Guard
from tests.support.devices import chosen_device
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
    for batch in data:
        with torch.autocast(
            chosen_device().type, torch.bfloat16, enabled=precision == "bf16-mixed"
        ):
            loss = loss_fn(bare, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
        bare_optimizer.step()
        bare_optimizer.zero_grad()

    seed(3)
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["adamw-foreach"](model.parameters())
    guard = Guard(model, optimizer, {"precision": precision, "clip": {"max_norm": 1.0}})
    for batch in data:
        assert guard.step(loss_fn, batch)
    assert differences(bare.state_dict(), model.state_dict()) == []
    assert differences(bare_optimizer.state_dict(), optimizer.state_dict()) == []
