"""GuardFabricPrecision in a real Fabric loop, with FP16 really running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import AdamW

from halfguard.errors import UsageError
from halfguard.integrations.fabric import GuardFabricPrecision
from halfguard.records import Cause
from tests.integrations.lightning_runs import (
    INIT_SCALE,
    RETRY,
    SKIP,
    Batch,
    batches,
    nan_at,
    overflow_everywhere,
)
from tests.support.models import differences

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(12, 24), nn.BatchNorm1d(24)
        self.last = nn.Linear(24, 4)
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        self.dtypes.add(out.dtype)
        return out


class Run:
    """A loop with Fabric; ``plugin`` is its only difference."""

    def __init__(self, plugin: Any, *, fused: bool = False, accumulate: int = 1) -> None:
        how = {"plugins": plugin} if plugin is not None else {}
        self.fabric = Fabric(accelerator="cpu", devices=1, **how)
        self.net = Net()
        optimizer = AdamW(self.net.parameters(), lr=1e-3, fused=fused, foreach=not fused)
        self.model, self.optimizer = self.fabric.setup(self.net, optimizer)
        self.accumulate, self.clip_at = accumulate, 0.5
        self.plugin = plugin
        if isinstance(plugin, GuardFabricPrecision):
            plugin.bind(self.model, self.optimizer, clip=lambda _: self.clip())

    def parts(self) -> dict[str, Any]:
        """Return what a checkpoint of this run holds."""
        return {"model": self.model, "optimizer": self.optimizer, "precision": self.plugin}

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) / self.accumulate

    def clip(self) -> None:
        self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.clip_at)

    def fit(self, data: list[Batch], *, clip: bool, retry: bool = False) -> dict[str, Any]:
        for index, batch in enumerate(data):
            loss = self.plugin.forward(self.loss, batch) if retry else self.loss(self.model, batch)
            self.fabric.backward(loss)
            if (index + 1) % self.accumulate == 0:
                if clip:
                    self.clip()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}


def stock() -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=INIT_SCALE))


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(("fused", "clip"), [(False, False), (False, True), (True, False)])
def test_a_healthy_run_is_bitwise_fabrics_own(fused: bool, clip: bool, accumulate: int) -> None:
    bare = Run(stock(), fused=fused, accumulate=accumulate)
    guarded = Run(GuardFabricPrecision(RETRY), fused=fused, accumulate=accumulate)
    expected = bare.fit(batches(), clip=clip)
    assert not differences(expected, guarded.fit(batches(), clip=clip))
    assert guarded.net.dtypes == bare.net.dtypes == {torch.float16}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(("fused", "accumulate"), [(False, 1), (False, 4), (True, 1)])
def test_if_every_step_is_retried_the_run_is_bitwise_fp32(
    fused: bool, accumulate: int, clip: bool
) -> None:
    data = batches(fault=overflow_everywhere)
    expected = Run(None, fused=fused, accumulate=accumulate).fit(data, clip=clip)
    guarded = Run(GuardFabricPrecision(RETRY), fused=fused, accumulate=accumulate)
    if not clip:
        guarded.clip_at = torch.inf
    assert not differences(expected, guarded.fit(data, clip=clip, retry=True))
    assert guarded.plugin.guard.summary().retried == 12 // accumulate


@pytest.mark.parametrize("clip", [False, True])
def test_one_nan_batch_leaves_the_run_without_it(clip: bool) -> None:
    without = [batch for index, batch in enumerate(batches()) if index != 3]
    expected = Run(stock()).fit(without, clip=clip)
    guarded = Run(GuardFabricPrecision(SKIP))
    assert not differences(expected, guarded.fit(batches(12, nan_at(3)), clip=clip))
    assert guarded.plugin.guard.summary().skipped == {Cause.BAD_BATCH: 1}


def test_fabric_alone_raises_where_the_guard_skips() -> None:
    with pytest.raises(RuntimeError, match="non-finite"):
        Run(stock()).fit(batches(12, nan_at(3)), clip=True)


def test_state_goes_both_ways() -> None:
    bare = Run(stock())
    bare.fit(batches(), clip=False)
    guarded = Run(GuardFabricPrecision(SKIP))
    guarded.plugin.load_state_dict(bare.plugin.state_dict() | {"scale": 128.0})
    assert guarded.plugin.scaler.get_scale() == 128.0
    again = Run(stock())
    again.plugin.load_state_dict(guarded.plugin.state_dict())
    assert again.plugin.scaler.get_scale() == 128.0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_stopped_run_resumes_bitwise(tmp_path: Path, accumulate: int) -> None:
    """The plugin is saved by ``fabric.save`` with the model, and loaded by ``fabric.load``."""
    data = batches(12, nan_at(3))
    whole, first, second = (
        Run(GuardFabricPrecision(RETRY), accumulate=accumulate) for _ in range(3)
    )
    expected = whole.fit(data, clip=True, retry=True)
    first.fit(data[:6], clip=True, retry=True)
    first.fabric.save(tmp_path / "half.ckpt", first.parts())
    assert not second.fabric.load(tmp_path / "half.ckpt", second.parts())
    assert not differences(expected, second.fit(data[6:], clip=True, retry=True))
    assert not differences(whole.plugin.guard.state_dict(), second.plugin.guard.state_dict())
    assert second.plugin.guard.summary().skipped == {Cause.BAD_BATCH: 1}


def test_without_bind_the_error_says_what_to_call() -> None:
    with pytest.raises(UsageError, match="no guard yet"):
        _ = GuardFabricPrecision().guard
