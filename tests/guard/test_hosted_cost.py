"""Count the operations and host syncs that a hosted guard adds to a framework with torch's scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from tests.guard.test_cost import Many, counted, endless_batches, loss_fn
from tests.support.cases import each
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("seed")

# A framework clips by a norm of its own, so norms are computed twice. Most of the rest is for BatchNorm.
AT_MOST = 30
RETRY = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}


def count(tensors: int, *, norm: bool, fused: bool, guarded: bool) -> OpCounter:
    model: nn.Module = Many(tensors, norm=norm)
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=fused, foreach=not fused)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0)
    guard: HostedGuard | None = None
    if guarded:
        guard = HostedGuard(model, optimizer, RETRY)
        scaler = GuardScaler(guard)
    batches = endless_batches()
    repeat: Callable[[Any], Any] = lambda batch: loss_fn(model, batch)  # noqa: E731

    def step() -> None:
        batch = next(batches)
        if guard is not None:
            guard.begin(batch, repeat=repeat)
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return counted(step)


@pytest.mark.slow
@each("norm", [False, True])
@each("fused", [False, True])
def test_what_the_guard_adds_does_not_depend_on_the_number_of_tensors(
    fused: bool, norm: bool
) -> None:
    added = []
    for tensors in (20, 200):
        stock = count(tensors, norm=norm, fused=fused, guarded=False)
        guarded = count(tensors, norm=norm, fused=fused, guarded=True)
        added.append(guarded.total - stock.total)
        # A host asks at once whether the step was applied, so a fused optimizer waits as well.
        assert guarded.host_syncs - stock.host_syncs == (1 if fused else 0)
    print(f"fused={fused} norm={norm}: {added} operations more")
    assert added[0] == added[1]
    assert added[0] <= AT_MOST
