"""The stand-in accelerator behaves like an accelerator, and computes what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halfguard.step.random_state import preserved_random_state
from tests.support import devices, standin
from tests.support.models import MODELS, OPTIMIZERS, bare_step, batches, differences, make
from tests.support.programs import run_python


@pytest.fixture
def device(accelerator: Any) -> torch.device:
    """These tests are about the stand-in alone."""
    return devices.chosen_device()


# -- it computes what the CPU computes


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_bitwise_that_of_the_cpu(name: str, optimizer: str, device: Any) -> None:
    ends = []
    for place in ("cpu", standin.NAME):
        with devices.choosing(place) as chosen, preserved_random_state():
            model = make(name)
            for part in model.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.0  # each device has its own random numbers
            step = OPTIMIZERS[optimizer](model.parameters())
            scaler = torch.amp.GradScaler(chosen.type, init_scale=1024.0)
            # Autocast differs between device types, so this compares FP32.
            for batch in batches(20):
                scaler.scale(nn.functional.cross_entropy(model(batch[0]), batch[1])).backward()
                scaler.unscale_(step)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(step)
                scaler.update()
                step.zero_grad()
            ends.append(nn.Module.state_dict(model.cpu()))
    assert differences(*ends) == []


def test_a_step_reads_the_device_once_unless_the_optimizer_is_fused(device: torch.device) -> None:
    model = make("mlp-batchnorm")
    for name, expected in (("sgd", {"item": 1}), ("adamw-fused", {})):
        optimizer = OPTIMIZERS[name](model.parameters())
        scaler = torch.amp.GradScaler(device.type, init_scale=64.0)
        step = partial(bare_step, model, optimizer, scaler, batches(1), 1.0)
        step()
        assert devices.host_waits(step) == expected


# -- memory


def test_memory_is_nan_until_it_is_written(device: torch.device) -> None:
    assert bool(torch.empty(1000, device=device).isnan().all())
    assert bool(torch.empty(1000, device=device, dtype=torch.bfloat16).isnan().all())


def test_each_device_counts_its_own_memory(device: torch.device) -> None:
    before = [standin.load().memory_allocated(i) for i in range(2)]
    held = torch.zeros(1000, device="standin:1")
    stats = standin.load().memory_stats(1)
    assert stats["allocated_bytes.all.current"] == before[1] + held.nbytes
    assert standin.load().memory_allocated(0) == before[0]
    del held
    assert standin.load().memory_allocated(1) == before[1]
    assert torch.accelerator.max_memory_allocated(1) >= before[1] + 4000


def test_tensors_of_two_devices_do_not_mix(device: torch.device) -> None:
    first, second = torch.ones(3, device="standin:0"), torch.ones(3, device="standin:1")
    for mix in (lambda: first + second, lambda: first + torch.ones(3), lambda: first.mul_(second)):
        with pytest.raises(RuntimeError, match="same device"):
            mix()
    assert (first + torch.ones(())).device == first.device  # a number
    assert torch.equal(first.to(second.device), second)


# -- waits of the host

READS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), "item"),
    "bool": (lambda x: bool(x.any()), "item"),
    "tolist": (lambda x: x.tolist(), "copy to host"),
    "cpu": (lambda x: x.cpu(), "copy to host"),
    "print": (str, "copy to host"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "mask": (lambda x: x[x > 0], "index"),
    "upload": (lambda x: torch.tensor([1.0], device=x.device), "copy to device"),
}


@pytest.mark.parametrize("name", READS)
def test_reads_are_counted_and_can_be_errors(name: str, device: torch.device) -> None:
    read, kind = READS[name]
    x = torch.ones(3, device=device)
    assert devices.host_waits(lambda: read(x)).get(kind, 0) >= 1
    with standin.load().no_waits(), pytest.raises(RuntimeError, match="synchronizing"):
        read(x)
    read(x)


def test_computing_makes_the_host_wait_for_nothing(device: torch.device) -> None:
    model, x = nn.Linear(3, 2, device=device), torch.ones(4, 3, device=device)
    with standin.load().no_waits():
        model(x).sum().backward()
        x[:, 0] = 2.0
        x.to("cpu", non_blocking=True)
        torch.zeros(3, device=device).index_fill_(0, torch.arange(2, device=device), 1.0)


# -- late copies


def test_a_copy_arrives_when_its_event_is_waited_for(device: torch.device) -> None:
    host = torch.zeros(3, pin_memory=True)
    host.copy_(torch.ones(3, device=device), non_blocking=True)
    arrived = torch.Event(device)
    arrived.record(torch.accelerator.current_stream(device))
    assert host.isnan().all()
    assert not arrived.query()
    arrived.synchronize()
    assert host.tolist() == [1.0] * 3
    assert arrived.query()


def test_an_event_of_one_device_says_nothing_of_the_other(device: torch.device) -> None:
    host = torch.zeros(3, pin_memory=True)
    host.copy_(torch.ones(3, device="standin:1"), non_blocking=True)
    event = torch.Event("standin")
    event.record()  # of the current device, which is the first
    event.synchronize()
    assert host.isnan().all()
    torch.accelerator.synchronize(1)
    assert host.tolist() == [1.0] * 3


def test_a_copy_holds_what_the_device_held_when_it_was_asked_for(device: torch.device) -> None:
    source, host = torch.ones(3, device=device), torch.zeros(3, pin_memory=True)
    host.copy_(source, non_blocking=True)
    source.fill_(2.0)
    del source
    torch.accelerator.synchronize()
    assert host.tolist() == [1.0] * 3


def test_copies_may_arrive_by_themselves(device: torch.device) -> None:
    standin.load().set_late_copies(True, lag=5)
    x, host = torch.ones(3, device=device), torch.zeros(3, pin_memory=True)
    host.copy_(x, non_blocking=True)
    for _ in range(3):
        x.add_(1)
    assert host.isnan().all()
    for _ in range(3):
        x.add_(1)
    assert host.tolist() == [1.0] * 3


def test_pinned_memory_is_read_late(device: torch.device) -> None:
    host, target = torch.ones(3, pin_memory=True), torch.zeros(3, device=device)
    target.copy_(host, non_blocking=True)
    host.fill_(2.0)  # too early: the device has not read it
    assert target.tolist() == [2.0] * 3


def test_memory_that_is_not_pinned_is_read_at_once(device: torch.device) -> None:
    host, target = torch.ones(3), torch.zeros(3, device=device)
    target.copy_(host, non_blocking=True)
    host.fill_(2.0)
    assert target.tolist() == [1.0] * 3


PENDING_AT_THE_END = """
import torch
from tests.support import standin

standin.prepare()
standin.load().set_late_copies(True)
for size in range(100, 200):
    host = torch.empty(size, pin_memory=True)
    host.copy_(torch.ones(size, device="standin"), non_blocking=True)
"""


@pytest.mark.slow
def test_a_process_ends_well_while_copies_are_pending(device: torch.device) -> None:
    run_python("-c", PENDING_AT_THE_END, MALLOC_PERTURB_="165")  # freed memory holds garbage


# -- random numbers


def test_each_device_has_its_own_generator(device: torch.device) -> None:
    standin.load().manual_seed_all(3)
    host = torch.get_rng_state()
    numbers = [torch.rand(3, device=f"standin:{i}").tolist() for i in (0, 0, 1)]
    assert numbers[0] == numbers[2] != numbers[1]
    assert numbers[0] == torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()
    assert torch.equal(host, torch.get_rng_state())
    own = torch.Generator("standin:1").manual_seed(3)
    assert torch.rand(3, device="standin:1", generator=own).tolist() == numbers[0]


# -- the process after it


def test_a_test_leaves_a_machine_without_an_accelerator() -> None:
    missing = standin.prepare()
    if missing is not None:
        pytest.skip(missing)
    with devices.choosing(standin.NAME):
        assert torch.accelerator.is_available()
    assert not torch.accelerator.is_available()
