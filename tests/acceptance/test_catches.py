"""What the kit is for: wrong kernels, rules, syncs, weights and costs are each found by their check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from halfguard.acceptance import (
    autocast,
    cost,
    faults,
    healthy,
    host_syncs,
    incidents,
    kernels,
    memory,
)
from halfguard.acceptance.fault_cells import cells
from halfguard.autocast_ops import RULES, AutocastRule
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.gate import Gate
from halfguard.records import Cause
from tests.acceptance.helper import overridden, run_check

pytestmark = pytest.mark.slow
AUTOCAST_KEY = "AutocastPrivateUse1"


# -- a broken kernel


@pytest.mark.usefixtures("accelerator")
def test_a_kernel_that_is_wrong_by_a_thousandth_is_found() -> None:
    def wrong(x: Tensor) -> Tensor:
        return (x.cpu().exp() * 1.001).to(x.device)

    with overridden("exp", "PrivateUse1", wrong):
        found = run_check(autocast, "standin")
    assert found.status == "failed"
    failed = {case.name: case.detail for case in found.cases if case.status == "failed"}
    assert failed.keys() == {"exp", "poisson_nll_loss"}  # which calls it
    assert "on standin" in failed["exp"]
    assert "times the bound" in failed["exp"]


@pytest.mark.usefixtures("accelerator")
def test_a_matrix_product_that_adds_in_half_is_found() -> None:
    def adds_in_half(a: Tensor, b: Tensor) -> Tensor:
        total = a.cpu()[:, :1] * b.cpu()[:1]
        for index in range(1, a.shape[1]):  # each partial sum is rounded to the dtype
            total = total + a.cpu()[:, index : index + 1] * b.cpu()[index : index + 1]
        return total.to(a.device)

    with overridden("mm", "PrivateUse1", adds_in_half):
        found = run_check(kernels, "standin")
    wrong = {case.name for case in found.cases if case.status == "failed"}
    assert {"matmul, FP16", "matmul, BF16"} <= wrong


# -- a wrong autocast rule


@pytest.mark.usefixtures("accelerator")
def test_a_device_without_a_rule_is_found() -> None:
    with overridden("softmax.int", AUTOCAST_KEY, torch.library.fallthrough_kernel):
        found = run_check(autocast, "standin")
    (case,) = (case for case in found.cases if case.status == "failed")
    assert case.name == "softmax.int"
    assert "on standin" in case.detail
    assert "it returns FP16, not FP32" in case.detail


@pytest.mark.usefixtures("accelerator")
def test_a_device_that_does_not_lower_is_found() -> None:
    with overridden("mm", AUTOCAST_KEY, torch.library.fallthrough_kernel):
        found = run_check(autocast, "standin")
    details = {case.name: case.detail for case in found.cases if case.status == "failed"}
    assert details.keys() == {"mm"}
    assert "autocast casts to nothing, not to FP16" in details["mm"]


def test_an_emulation_that_differs_from_the_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RULES | {"exp": AutocastRule.LOWER}
    monkeypatch.setattr("halfguard.acceptance.autocast_call.RULES", rules)
    found = run_check(autocast, "cpu")
    assert [case.name for case in found.cases if case.status == "failed"] == ["exp"]


# -- an injected host sync


def _reads_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Gate.refused

    def reading(self: Gate, row: Tensor, *args: Any) -> Any:
        row.sum().item()
        return refused(self, row, *args)

    monkeypatch.setattr(Gate, "refused", reading)


def test_a_host_sync_is_found_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(host_syncs, "cpu").status == "passed"
    _reads_a_number(monkeypatch)
    found = run_check(host_syncs, "cpu")
    assert found.status == "failed"
    assert "4 more _local_scalar_dense" in found.reason


@pytest.mark.usefixtures("accelerator")
def test_a_host_sync_is_counted_and_raises_on_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _reads_a_number(monkeypatch)
    found = run_check(host_syncs, "standin")
    failed = {case.name: case for case in found.cases if case.status == "failed"}
    assert "AdamW fused, fp16-mixed" in failed
    detector = failed['AdamW fused, under set_sync_debug_mode("error")']
    assert "halfguard/guard/guard.py:" in detector.detail


@pytest.mark.usefixtures("accelerator")
def test_a_blocking_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Gate.refused

    def copying(self: Gate, row: Tensor, *args: Any) -> Any:
        row.cpu()
        return refused(self, row, *args)

    monkeypatch.setattr(Gate, "refused", copying)
    found = run_check(host_syncs, "standin")
    assert "more _to_copy" in found.reason


# -- a guard that does something else


def test_a_guard_that_changes_a_healthy_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Guard.step

    def nudged(self: Guard, *args: Any, **options: Any) -> Any:
        outcome = step(self, *args, **options)
        with torch.no_grad():
            next(self.model.parameters()).view(-1)[0].mul_(1 + 2**-20)
        return outcome

    monkeypatch.setattr(Guard, "step", nudged)
    found = run_check(healthy, "cpu")
    assert found.status == "failed"
    assert "values differ: model." in found.reason


@pytest.fixture
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only bad batches, in each phase: the other cells are run elsewhere."""
    few = [cell for cell in cells(every=False) if cell.fault.cause is Cause.BAD_BATCH]
    monkeypatch.setattr(faults, "cells", lambda every: few)


@pytest.mark.usefixtures("few_cells")
def test_a_gate_that_lets_a_fault_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "refused", lambda self, row, limits: torch.zeros_like(row[0]).bool())
    found = run_check(faults, "cpu")
    assert found.status == "failed"
    failed = [case.name for case in found.cases if case.status == "failed"]
    assert all("AdamW fused" in name for name in failed)  # the others are decided on the host
    assert failed


@pytest.mark.usefixtures("few_cells")
def test_buffers_that_keep_the_bad_batch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Guard.__init__

    def without_buffers(
        self: Guard, model: Any, optimizer: Any, config: Any, **options: Any
    ) -> None:
        make(self, model, optimizer, config | {"buffers": "none"}, **options)

    monkeypatch.setattr(Guard, "__init__", without_buffers)
    found = run_check(faults, "cpu")
    assert "model.norm.running_mean" in found.reason


def test_an_incident_that_does_not_fail_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfguard.replaying.autopsy._reproduced", lambda *_: "no")
    found = run_check(incidents, "cpu")
    assert "the step does not fail on the CPU" in found.reason


def test_operations_that_grow_with_the_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Guard.step

    def checking(self: Guard, *args: Any, **options: Any) -> Any:
        for parameter in self.model.parameters():
            parameter.detach().isnan()
        return step(self, *args, **options)

    monkeypatch.setattr(Guard, "step", checking)
    found = run_check(cost, "cpu")
    assert "added operations with 6 layers" in found.reason


@pytest.mark.usefixtures("accelerator")
def test_a_copy_of_the_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Guard.__init__

    def copying(self: Guard, model: Any, *args: Any, **options: Any) -> None:
        make(self, model, *args, **options)
        self.copies = [p.detach().clone() for p in model.parameters()]  # type: ignore[attr-defined]

    monkeypatch.setattr(Guard, "__init__", copying)
    found = run_check(memory, "standin")
    assert found.status == "failed"
    assert "bytes more than bare" in found.reason
