"""A run that is stopped after any step and resumed with new objects is bitwise equal to one that is not."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from halfguard.guard.guard import Guard
from halfguard.precision.master_weights import MasterWeights
from halfguard.records import Cause
from tests.guard.helper import frozen, same
from tests.support.devices import chosen_device
from tests.support.models import GradientBoost

pytestmark = pytest.mark.usefixtures("device")

STEPS = 50
PRESETS = ["default", "fp16_safe", "balanced", "ultra_conservative", "native_fp16"]
# The fault of a step, by its number, so that a resumed run has the same faults.
FAULTS = {3: "overflow", 4: "overflow", 11: "forward", 12: "inputs", 20: "overflow", 33: "forward",
          34: "overflow", 41: "inputs", 48: "overflow"}  # fmt: skip


class Net(nn.Module):
    """BatchNorm and dropout: buffers and random numbers that a resumed run must get right."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)
        self.outer = nn.Linear(8, 2)

    def forward(self, x: Tensor, fault: str) -> Tensor:
        x = self.dropout(self.norm(self.inner(x)))
        if torch.is_autocast_enabled(chosen_device().type):  # in FP32 the step succeeds
            if fault == "forward":
                x = x * math.inf
            if fault == "overflow":
                x = GradientBoost.apply(x, 1e9)
        return self.outer(x)


@dataclass
class Parts:
    model: nn.Module
    optimizer: Optimizer
    scheduler: CosineAnnealingLR
    guard: Guard

    @classmethod
    def fresh(cls, preset: Any) -> Parts:
        torch.manual_seed(5)
        model: nn.Module = Net()
        half = preset == "native_fp16"
        if half:
            model.half()
        optimizer: Optimizer = AdamW(model.parameters(), lr=0.01)
        scheduler = CosineAnnealingLR(optimizer, T_max=STEPS)
        optimizer = MasterWeights(optimizer) if half else optimizer
        return cls(
            model, optimizer, scheduler, Guard(model, optimizer, preset, scheduler=scheduler)
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in vars(self).items():
            part.load_state_dict(state[name])


def loss_fn(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    output = model(batch["x"], batch["fault"])
    return 0.1 * nn.functional.mse_loss(
        output.float(), batch["y"]
    )  # norms below the presets' limits


def run(parts: Parts, first: int, last: int) -> None:
    accumulate = parts.guard.config.accumulate
    for step in range(first, last):
        fault = FAULTS.get(step, "")
        for micro in range(accumulate):
            generator = torch.Generator().manual_seed(1000 * step + micro)
            x = torch.randn(8, 6, generator=generator)
            if fault == "inputs" and micro == accumulate - 1:
                x[2, 3] = math.nan
            y = torch.randn(8, 2, generator=generator)
            parts.guard.step(loss_fn, {"x": x, "y": y, "fault": fault})
        if step % 20 == 19:
            parts.guard.end_epoch()


def saved(parts: Parts) -> bytes:
    file = io.BytesIO()
    torch.save(parts.state_dict(), file)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.usefixtures("seed")
def test_stopped_after_any_step(preset: str) -> None:
    whole = Parts.fresh(preset)
    checkpoints = []
    for step in range(STEPS):
        run(whole, step, step + 1)
        checkpoints.append(saved(whole))
    expected = frozen(whole.state_dict())
    total = whole.guard.summary()
    assert total.steps == STEPS
    assert {Cause.BAD_BATCH} <= set(total.skipped), "faults must have happened"
    assert total.retried > 0 or {Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW} <= set(
        total.skipped
    )

    for step, checkpoint in enumerate(checkpoints):
        torch.manual_seed(99)  # nothing may depend on what the new process did before
        parts = Parts.fresh(preset)
        parts.load_state_dict(torch.load(io.BytesIO(checkpoint), weights_only=True))
        run(parts, step + 1, STEPS)
        found = frozen(parts.state_dict())
        different = [name for name in expected if not same(found[name], expected[name])]
        assert not different, f"after step {step}"
        assert parts.guard.summary() == total


@pytest.mark.on_standin
@pytest.mark.usefixtures("seed")
def test_the_order_of_loading_does_not_matter() -> None:
    """A guard with snapshots must not keep the weights that the model had before loading."""
    config = {"recovery": {"every": 100, "max_rollbacks": 1}, "skip": {"max_consecutive": 1}}
    whole = Parts.fresh("default")
    run(whole, 0, 3)
    state = frozen(whole.state_dict())
    for order in (["model", "optimizer", "scheduler"], []):
        with patch("halfguard.guard.recovery.recovery._PROVE", 2):
            parts = Parts.fresh(config)
        stateful = frozen(parts.guard.state_dict())
        for name in order:
            getattr(parts, name).load_state_dict(state[name])
        parts.guard.load_state_dict(stateful)
        if not order:
            for name in ("model", "optimizer", "scheduler"):
                getattr(parts, name).load_state_dict(state[name])
        run(parts, 5, 8)
        bad = {"x": torch.full((8, 6), math.nan), "y": torch.zeros(8, 2), "fault": ""}
        assert parts.guard.step(loss_fn, bad).action == "roll_back"
        assert same(frozen(parts.model.state_dict()), state["model"]), order
