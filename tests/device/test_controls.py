"""What is wrong on purpose is found: a kernel, an autocast rule, a host sync, a guard that leaves traces."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from halfguard.guard.guard import Guard
from halfguard.guard.stepping.gate import Gate
from tests.device import test_host_syncs
from tests.guard import test_faults, test_healthy
from tests.ops import test_unary
from tests.precision import test_emulation

KEYS = {"cpu": "CPU", "cuda": "CUDA", "standin": "PrivateUse1"}


@contextmanager
def overridden(operation: str, key: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """Replace the kernel of an aten operation for one dispatch key."""
    library = torch.library.Library("aten", "IMPL", key)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a kernel that is replaced
        library.impl(operation, kernel, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def key_of(device: torch.device, prefix: str = "") -> str:
    if device.type not in KEYS:
        pytest.skip(f"the dispatch key of {device.type} is not known here")
    return prefix + KEYS[device.type]


def test_a_kernel_that_is_wrong_by_a_thousandth(device: torch.device) -> None:
    def wrong(x: Tensor) -> Tensor:
        exact = torch.exp2(x.double() / math.log(2))
        return (exact * (1.001 if x.dtype is torch.float32 else 1.0)).to(x.dtype)

    with (
        overridden("exp", key_of(device), wrong),
        pytest.raises(pytest.fail.Exception, match="value of exp"),
    ):
        test_unary.test_within_one_ulp_on_every_finite_value()  # type: ignore[call-arg]


def test_a_missing_autocast_rule(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("the rules are those of the emulation")
    missing = torch.library.fallthrough_kernel
    with (
        overridden("softmax.int", key_of(device, "Autocast"), missing),
        pytest.raises(pytest.fail.Exception, match="softmax:"),
    ):
        test_emulation.test_runs_in_float32()


@pytest.mark.usefixtures("device", "seed")
def test_a_host_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Gate.refused

    def reading(self: Gate, row: Tensor, *args: Any) -> Any:
        row.sum().item()
        return refused(self, row, *args)

    monkeypatch.setattr(Gate, "refused", reading)
    with pytest.raises(AssertionError):
        test_host_syncs.test_a_healthy_step_waits_as_often_as_the_bare_loop("adamw-fused")


@pytest.mark.usefixtures("repeatable")
def test_a_guard_that_changes_a_healthy_run(
    seed: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Guard.step

    def nudged(self: Guard, *args: Any, **options: Any) -> Any:
        outcome = step(self, *args, **options)
        with torch.no_grad():
            next(self.model.parameters()).view(-1)[0].mul_(1 + 2**-20)
        return outcome

    monkeypatch.setattr(Guard, "step", nudged)
    with pytest.raises(AssertionError):
        test_healthy.test_other_precisions_too("fp32", seed)


@pytest.mark.usefixtures("repeatable")
def test_a_gate_that_lets_a_fault_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "refused", lambda self, row, limits: torch.zeros_like(row[0]).bool())
    with pytest.raises(AssertionError):
        test_faults.test_the_step_has_its_reaction(
            "nan-input", "mlp-batchnorm", "adamw-fused", 1, "skip"
        )
