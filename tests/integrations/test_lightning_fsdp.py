"""The plugin for FSDP. Lightning refuses FSDP without a GPU: here is what a CPU can show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy

from halfguard.guard.guard_scaler import GuardScaler
from halfguard.integrations.lightning import GuardPrecision
from halfguard.integrations.lightning_fsdp import GuardFSDPPrecision
from halfguard.records import Cause
from tests.integrations.lightning_runs import RETRY, Classifier, batches, fit, nan_at
from tests.support.models import differences

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore")]


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


def test_the_plugin_skips_a_nan_batch_and_never_repeats() -> None:
    """A real fit on one device: the guard's hooks of the plugin, without FSDP's sharding and casts.

    Lightning's own FSDP plugin lowers on CUDA only, so the numbers are FP32.
    """
    plugin, model = GuardFSDPPrecision(RETRY), Classifier(dropout=0)
    fit(model, plugin, batches(12, nan_at(3)))
    assert model.dtypes == {torch.float32}
    assert plugin.guard is not None
    summary = plugin.guard.summary()
    assert (summary.applied, summary.retried) == (11, 0)
    assert summary.skipped == {Cause.BAD_BATCH: 1}
    expected = Classifier(dropout=0)
    without = [batch for index, batch in enumerate(batches()) if index != 3]
    fit(expected, None, without)
    assert not differences(expected.state_dict(), model.state_dict())
