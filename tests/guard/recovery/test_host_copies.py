"""Snapshots in memory: the host waits for the copies when they are read, not when they are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from halfguard.guard.guard import Guard
from halfguard.guard.recovery.snapshot_store import HostCopies
from tests.support.devices import chosen_device, host_waits
from tests.support.models import OPTIMIZERS, batches, loss_fn, make

pytestmark = pytest.mark.usefixtures("accelerator")


def weights(fill: float) -> torch.Tensor:
    return torch.full((3, 4), fill, device=chosen_device())


def test_copies_arrive_when_they_are_waited_for_and_keep_the_old_values(accelerator: Any) -> None:
    first, second = weights(1.0), weights(2.0).t()
    copies = HostCopies()
    with accelerator.no_waits():
        kept = [copies.copy(first), copies.copy(second)]
        copies.record()
        first.zero_()
    assert all(copy.isnan().all() for copy in kept)  # the stand-in's sign of what has not arrived
    assert host_waits(copies.wait) == {"event": 1}
    assert torch.equal(kept[0], torch.ones(3, 4))
    assert torch.equal(kept[1], torch.full((4, 3), 2.0))
    assert host_waits(copies.wait) == {}


def test_two_devices_are_both_waited_for() -> None:
    copies = HostCopies()
    kept = [copies.copy(torch.full((2,), 3.0, device=f"standin:{index}")) for index in range(2)]
    copies.record()
    copies.wait()
    assert [copy.tolist() for copy in kept] == [[3, 3], [3, 3]]


def test_without_memory_that_can_be_locked_the_copies_are_ordinary_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def no_more(*_: Any, **options: Any) -> None:
        calls.append(options)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty_like", no_more)
    copies = HostCopies()
    kept = [copies.copy(weights(1.0)), copies.copy(weights(2.0))]
    copies.record()
    assert [copy.tolist()[0] for copy in kept] == [[1.0] * 4, [2.0] * 4]
    assert len(calls) == 1  # it is not asked again and again


def test_what_lies_on_the_host_is_copied_at_once() -> None:
    there = torch.ones(2)
    kept = HostCopies().copy(there)
    there.zero_()
    assert kept.tolist() == [1, 1]


@pytest.mark.usefixtures("between_looks")
def test_a_step_that_takes_a_snapshot_blocks_for_no_copy() -> None:
    model = make("mlp-batchnorm")
    config = {"scale": {"init": 64.0}, "recovery": {"every": 4}}
    guard = Guard(model, OPTIMIZERS["adamw-fused"](model.parameters()), config)
    waits = [host_waits(lambda b=batch: guard.step(loss_fn, b)) for batch in batches(16)]  # type: ignore[misc]
    assert guard.summary().applied == 16
    assert sum(step.get("copy to host", 0) for step in waits) == 0
    # What is left: the check for finite values, the loss scale and its age, in the steps with a snapshot.
    reads = [step.get("item", 0) for step in waits[4:]]
    assert max(reads) <= 4
    assert reads.count(0) >= 8
