"""A precision by its name switches autocast on and off, inside and outside another one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfguard.errors import UsageError
from halfguard.precision.modes import autocast, full_precision, weights_dtype
from halfguard.precision_names import Precision
from tests.support.devices import chosen_device

pytestmark = pytest.mark.usefixtures("device")


def product(dtype: torch.dtype = torch.float32) -> torch.dtype:
    x = torch.ones(2, 2, dtype=dtype)
    return (x @ x).dtype


@pytest.mark.on_standin
@pytest.mark.parametrize(
    ("name", "dtype", "weights", "scale"),
    [
        ("fp32", torch.float32, torch.float32, False),
        ("fp16-mixed", torch.float16, torch.float32, True),
        ("bf16-mixed", torch.bfloat16, torch.float32, False),
        ("fp16-weights", torch.float16, torch.float16, True),
    ],
)
def test_each_precision(name: str, dtype: torch.dtype, weights: torch.dtype, scale: bool) -> None:
    precision = Precision(name)
    assert precision == name
    assert weights_dtype(precision) is weights
    assert precision.needs_loss_scale is scale
    assert precision.needs_master_weights is (weights is torch.float16)
    with autocast(name, chosen_device().type):
        assert product() is dtype
    with (
        torch.autocast(chosen_device().type, torch.bfloat16),
        autocast(precision, chosen_device().type),
    ):
        assert product() is dtype
    assert product() is torch.float32


def test_full_precision_is_an_island_and_casts_nothing() -> None:
    with autocast("fp16-mixed", chosen_device().type):
        with full_precision(chosen_device().type):
            assert product() is torch.float32
            assert product(torch.float16) is torch.float16
        assert product() is torch.float16


def test_half_weights_need_autocast_for_fp32_inputs_and_an_fp32_loss(seed: object) -> None:
    model, x, y = nn.Linear(3, 2).half(), torch.ones(4, 3), torch.ones(4, 2)
    with pytest.raises(RuntimeError, match="same dtype"):
        model(x)
    with autocast("fp16-weights", chosen_device().type):
        assert nn.functional.mse_loss(model(x), y).dtype is torch.float32
    assert nn.functional.mse_loss(model(x.half()), y.half()).dtype is torch.float16


def test_an_unknown_name_says_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="'fp17'") as caught:
        autocast("fp17", "cpu")
    assert "fp32, fp16-mixed, bf16-mixed, fp16-weights" in caught.value.cure
