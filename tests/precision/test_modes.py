"""A precision by its name switches autocast on and off, inside and outside another one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halfguard.errors import UsageError
from halfguard.precision.modes import autocast, full_precision, without_autocast
from halfguard.precision_names import Precision
from tests.support.cases import each
from tests.support.devices import chosen_device

pytestmark = pytest.mark.usefixtures("device")


def product(dtype: torch.dtype = torch.float32) -> torch.dtype:
    x = torch.ones(2, 2, dtype=dtype)
    return (x @ x).dtype


@pytest.mark.on_standin
@each(
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


def test_without_autocast_reaches_the_regions_inside_and_nothing_afterwards() -> None:
    device = chosen_device().type
    enter = torch.autocast.__enter__
    with without_autocast():
        with without_autocast(), torch.autocast(device, torch.bfloat16):
            assert product() is torch.float32
        with torch.autocast(device, torch.bfloat16):
            assert product() is torch.float32
    with torch.autocast(device, torch.bfloat16):
        with without_autocast():  # what is around stays
            assert product() is torch.bfloat16
        with without_autocast("cpu", device), torch.autocast(device, torch.bfloat16):
            assert product() is torch.float32
        assert product() is torch.bfloat16
    assert torch.autocast.__enter__ is enter
    with torch.autocast(device, torch.bfloat16):
        assert product() is torch.bfloat16


def test_without_autocast_in_threads_that_overlap() -> None:
    device = chosen_device().type
    enter = torch.autocast.__enter__
    entered, leave = threading.Event(), threading.Event()
    seen: list[torch.dtype] = []

    def other() -> None:
        with without_autocast():
            entered.set()
            assert leave.wait(60)
            with torch.autocast(device, torch.bfloat16):
                seen.append(product())

    thread = threading.Thread(target=other)
    with without_autocast():
        thread.start()
        assert entered.wait(60)
    with torch.autocast(device, torch.bfloat16):  # the other thread is still in its block
        assert product() is torch.bfloat16
    leave.set()
    thread.join()
    assert seen == [torch.float32]
    assert torch.autocast.__enter__ is enter
    with torch.autocast(device, torch.bfloat16):
        assert product() is torch.bfloat16


@pytest.mark.on_standin
@pytest.mark.parametrize("knows_the_caller", [True, False])
def test_without_autocast_reaches_a_backward_pass_that_recomputes(
    knows_the_caller: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On an accelerator, a thread of torch's runs the backward pass. Before torch 2.12 it knew no context.
    if not knows_the_caller:
        monkeypatch.setattr(torch._C, "_is_key_in_tls", lambda _: False)
    device, seen = chosen_device().type, []

    def block(x: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            seen.append((x @ x).dtype)
            return x @ x

    x = torch.ones(2, 2, requires_grad=True)
    with without_autocast():
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert seen == [torch.float32] * 2
    checkpoint(block, x, use_reentrant=False).sum().backward()
    assert seen[2:] == [torch.bfloat16] * 2


def test_a_wrapper_that_somebody_adds_inside_stays() -> None:
    device = chosen_device().type
    enter: Any = torch.autocast.__enter__
    calls = []
    try:
        with without_autocast():
            below: Any = torch.autocast.__enter__
            theirs = lambda self: calls.append(1) or below(self)  # type: ignore[func-returns-value]  # noqa: E731
            torch.autocast.__enter__ = theirs  # type: ignore[method-assign]
        assert torch.autocast.__enter__ is theirs
        for _ in range(2):
            with without_autocast(), torch.autocast(device, torch.bfloat16):
                assert product() is torch.float32
        with torch.autocast(device, torch.bfloat16):
            assert product() is torch.bfloat16
        assert len(calls) == 3
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def test_an_unknown_name_says_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="'fp17'") as caught:
        autocast("fp17", "cpu")
    assert "fp32, fp16-mixed, bf16-mixed, fp16-weights" in caught.value.cure
