"""A healthy run is the same with heal and without it, bit for bit, and gets no island."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from halfguard.guard.guard import Guard
from halfguard.precision.islands import is_island
from halfguard.step.random_state import seeded
from tests.guard.helper import frozen, same
from tests.support.devices import host_waits
from tests.support.models import batches, loss_fn, make
from tests.support.swallowed import HEALTHY, Step

FIRST = sorted(HEALTHY)[:20]
RETRY: dict[str, Any] = {"skip": {"on_nonfinite": "retry_fp32"}}


def train(make_step: Callable[[int], Step], config: dict[str, Any], steps: int) -> tuple[Any, int]:
    """Train on one batch; return the end of the run and the number of islands."""
    with seeded(0):
        step = make_step(0)
        trained = [p for p in step.model.parameters() if p.requires_grad]
        guard = Guard(step.model, torch.optim.AdamW(trained, lr=1e-3), config)
        for _ in range(steps):
            guard.step(step.loss_fn, step.batch)
        if guard.config.heal is not None:
            assert not guard.audit(step.loss_fn, step.batch).findings
        islands = sum(map(is_island, step.model.modules()))
        state = [
            step.model.state_dict(),
            guard.optimizers[0].state_dict(),
            guard.scaler.get_scale(),
        ]
        return frozen(state), islands


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", FIRST)
def test_a_healthy_model_is_left_alone(name: str) -> None:
    if HEALTHY[name](0).half_weights:
        pytest.skip("its weights are half, and autocast is off")
    healed, islands = train(HEALTHY[name], RETRY | {"heal": {}}, 8)
    plain, _ = train(HEALTHY[name], RETRY, 8)
    assert islands == 0
    assert same(healed, plain)


@pytest.mark.sampled
def test_healthy_steps_wait_for_nothing(accelerator: Any) -> None:
    counts = []
    configs: list[dict[str, Any]] = [{}, {"heal": {}}]
    for config in configs:
        model = make("transformer")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        guard = Guard(model, optimizer, {"scale": {"init": 64.0}} | config)
        data = batches(12)
        for batch in data[:4]:
            guard.step(loss_fn, batch)
        counts.append(host_waits(lambda: _run(guard, data[4:])))  # noqa: B023
    assert counts[0] == counts[1]


def _run(guard: Guard, data: list[Any]) -> None:
    for batch in data:
        guard.step(loss_fn, batch)
