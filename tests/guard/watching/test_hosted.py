"""A hosted guard is watched as a plain loop is: the same rows, the same alarms, the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._python_dispatch import _get_current_dispatch_mode

from halfguard import Guard
from halfguard.guard.hosted import HostedGuard
from tests.guard.watching.test_watching import (
    EVERY,
    SCALE,
    Classifier,
    classify,
    hooks,
    loud,
    watched_rows,
)
from tests.support.models import differences

STEPS = 12


class CurableNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def watched(hosted: bool, *, accumulate: int = 1, **options: Any) -> tuple[Guard, Classifier]:
    torch.manual_seed(0)
    model = Classifier()
    if "heal" in options:
        model.norm = CurableNorm()  # type: ignore[assignment]
    optimizer = AdamW(model.parameters(), lr=1e-2)
    config = {"watch": {"every": EVERY}, "scale": SCALE, **options}
    if not hosted:
        guard = Guard(model, optimizer, config | {"accumulate": accumulate})
        for step in range(STEPS * accumulate):
            guard.step(classify, loud(step))
        return guard, model
    host = HostedGuard(model, optimizer, config)
    for step in range(STEPS * accumulate):
        with host.autocast():
            loss = host.forward(lambda m, b: classify(m, b) / accumulate, loud(step))
        host.scale(loss).backward()  # type: ignore[no-untyped-call]
        if (step + 1) % accumulate == 0:
            host.apply(optimizer)
            optimizer.zero_grad()
            assert _get_current_dispatch_mode() is None
            assert hooks(model) == 0
    return host, model


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.usefixtures("seed")
def test_a_hosted_guard_sees_what_a_plain_loop_sees(accumulate: int) -> None:
    (plain, one), (hosted, other) = (watched(h, accumulate=accumulate) for h in (False, True))
    assert not differences(one.state_dict(), other.state_dict())
    rows, seen = watched_rows(plain), watched_rows(hosted)
    assert [row.step for row in rows] == [row.step for row in seen]
    assert len(rows) == STEPS // EVERY
    for row, its in zip(rows, seen, strict=True):
        assert [layer.model_dump() for layer in row.layers] == [
            layer.model_dump() for layer in its.layers
        ]
        assert row.warnings == its.warnings
    assert plain.watching is not None
    assert hosted.watching is not None
    assert [str(alarm) for alarm in plain.watching.alarms] == [
        str(alarm) for alarm in hosted.watching.alarms
    ]
    assert plain.watching.alarms


@pytest.mark.usefixtures("seed")
def test_a_hosted_guard_that_heals_cures_what_the_watch_found() -> None:
    guard, _ = watched(True, heal={}, skip={"on_nonfinite": "retry_fp32"})
    rows = watched_rows(guard)
    assert rows[0].infinite > 0 == rows[-1].infinite


@pytest.mark.usefixtures("seed")
def test_a_pass_that_the_host_gives_up_is_not_watched_on() -> None:
    model = Classifier()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    guard = HostedGuard(model, optimizer, {"watch": {"every": 1}})
    guard.begin(loud(0))
    assert _get_current_dispatch_mode() is not None
    guard.abandon()
    assert _get_current_dispatch_mode() is None
    guard.begin(loud(1))
    guard.close()
    assert _get_current_dispatch_mode() is None
    assert hooks(model) == 0
