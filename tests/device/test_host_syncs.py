"""A healthy guarded step makes the host wait as often as the bare loop, and never more.

The stand-in and CUDA count waits themselves. Elsewhere reads are counted at torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from halfguard.guard.guard import Guard
from tests.guard.test_cost import (  # noqa: F401
    test_retry_costs_a_fused_optimizer_one_host_sync_and_others_none,
    test_without_clipping_the_norms_cost_a_few_operations_for_all_tensors,
)
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device, host_waits
from tests.support.models import OPTIMIZERS, bare_step, batches, loss_fn, make

WARM_UP, COUNTED = 4, 4


def count_waits(step: Callable[[], object]) -> int:
    """Return the waits of some steps in mid-run; the first ones make optimizer state."""
    for _ in range(WARM_UP):
        step()

    def run() -> None:
        for _ in range(COUNTED):
            step()

    if chosen_device().type in ("cuda", "standin"):
        waits = host_waits(run)
        return sum(count for reason, count in waits.items() if reason != "event")
    with OpCounter() as counter:
        run()
    return counter.host_syncs


@pytest.mark.usefixtures("device", "seed", "between_looks")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_healthy_step_waits_as_often_as_the_bare_loop(optimizer: str) -> None:
    (batch,) = batches(1)
    model, bare = make("mlp-batchnorm"), make("mlp-batchnorm")
    scaler = torch.amp.GradScaler(chosen_device().type, init_scale=64.0)
    by_hand = OPTIMIZERS[optimizer](bare.parameters())
    config = {"scale": {"init": 64.0}, "clip": {"max_norm": 1.0}, "spike": {"sigma": 1000.0}}
    guard = Guard(model, OPTIMIZERS[optimizer](model.parameters()), config)
    waits = count_waits(lambda: guard.step(loss_fn, batch))
    assert waits <= count_waits(lambda: bare_step(bare, by_hand, scaler, [batch], max_norm=1.0))
    assert waits == 0 or optimizer != "adamw-fused"
