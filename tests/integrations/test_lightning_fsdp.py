"""The plugin for FSDP. Lightning refuses FSDP without a GPU: here is what a CPU can show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy

from halfguard.guard.guard_scaler import GuardScaler
from halfguard.integrations.lightning import GuardPrecision
from halfguard.integrations.lightning_fsdp import GuardFSDPPrecision

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_strategy_accepts_this_plugin_and_no_other() -> None:
    strategy = FSDPStrategy(precision_plugin=GuardFSDPPrecision("fp16_safe"))
    scaler: Any = strategy.precision_plugin.scaler
    assert isinstance(scaler, GuardScaler)
    for refused in (GuardPrecision("fp16_safe"), MixedPrecision("bf16-mixed", "cuda")):
        with pytest.raises(TypeError, match="can only work with"):
            FSDPStrategy(precision_plugin=refused)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16), ("fp32", torch.float32)],
)
def test_fsdp_is_told_the_precision_of_the_guard(precision: str, dtype: torch.dtype) -> None:
    plugin = GuardFSDPPrecision({"precision": precision})
    assert (
        plugin.mixed_precision_config.reduce_dtype is dtype
    )  # parameters: as the version of Lightning does


def test_the_state_of_a_stock_scaler_waits_for_the_guard() -> None:
    plugin = GuardFSDPPrecision()
    stock = torch.amp.GradScaler("cpu", init_scale=512.0)
    plugin.load_state_dict(stock.state_dict())
    assert plugin.state_dict() == stock.state_dict()
    assert not plugin._can_repeat
