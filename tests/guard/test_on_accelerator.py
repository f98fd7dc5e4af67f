"""What no CPU shows of a guard: rows that arrive late, several devices, a host that must not wait."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halfguard.guard.guard import Guard
from halfguard.records import Action
from tests.guard.helper import Recorder
from tests.support import standin
from tests.support.devices import chosen_device, host_waits, place
from tests.support.models import OPTIMIZERS, Batch, bare_step, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("accelerator")

SECOND = "standin:1"


def bad(batch: Batch) -> Batch:
    inputs, labels = batch
    return inputs * math.nan, labels


def guarded(
    model: nn.Module, optimizer: str = "adamw-fused", config: Any = "default", **options: Any
) -> Guard:
    return Guard(model, OPTIMIZERS[optimizer](model.parameters()), config, **options)


# -- rows


def test_a_model_on_another_device_than_the_current_one_is_read_right() -> None:
    model = make("transformer").to(SECOND)
    guard = guarded(model, config={"scale": {"init": 64.0}})
    assert guard._pending.lag
    data = [tuple(part.to(SECOND) for part in batch) for batch in batches(6)]
    outcomes = [guard.step(loss_fn, batch) for batch in data]
    assert guard.summary().applied == 6
    assert all(outcome.applied for outcome in outcomes)


def test_rows_are_pinned_on_the_host_also_if_the_device_is_the_default_one() -> None:
    model, data = make("mlp-batchnorm"), batches(4)
    guard = guarded(model, config={"scale": {"init": 64.0}})
    with torch.device(chosen_device()):
        for batch in data:
            guard.step(loss_fn, batch)
        assert guard.summary().applied == 4


@pytest.mark.usefixtures("between_looks")
def test_a_row_is_not_read_before_it_is_due(accelerator: Any) -> None:
    guard = guarded(make("mlp-batchnorm"), config={"scale": {"init": 64.0}})
    first, *rest = batches(3)
    guard.step(loss_fn, first)
    assert accelerator.pending_copies() == 1
    guard.step(loss_fn, rest[0])
    assert accelerator.pending_copies() == 2
    guard.step(loss_fn, rest[1])
    assert accelerator.pending_copies() == 2


# -- waits of the host


@pytest.mark.usefixtures("between_looks")
def test_rows_that_have_arrived_are_not_waited_for(accelerator: Any) -> None:
    accelerator.set_late_copies(True, lag=100)
    guard = guarded(make("mlp-batchnorm"), config={"scale": {"init": 64.0}})
    data = batches(8)
    for batch in data[:4]:
        guard.step(loss_fn, batch)
    with accelerator.no_waits():
        assert host_waits(lambda: [guard.step(loss_fn, batch) for batch in data[4:]]) == {}


# -- several devices


class Split(nn.Module):
    """A model whose second half lies on the second device; dropout draws there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(12, 24), nn.BatchNorm1d(24)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(24, 4)

    def spread(self) -> Split:
        self.first.to("standin:0")
        for part in (self.norm, self.last):
            part.to(SECOND)
        return self

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(torch.relu(self.first(x)).to(self.last.weight.device))
        return self.last(self.drop(hidden))


def split_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1].to(logits.device))


def split_model(seed: Callable[[int], None]) -> Split:
    seed(5)
    return Split().spread()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_devices_in_one_model(optimizer: str, seed: Callable[[int], None]) -> None:
    bare = split_model(seed)
    bare_optimizer = OPTIMIZERS[optimizer](bare.parameters())
    scaler = torch.amp.GradScaler("standin", init_scale=64.0)
    data = batches(20)
    for batch in data:
        bare_step(bare, bare_optimizer, scaler, [batch], 1.0, split_loss)

    model = split_model(seed)
    config = {"scale": {"init": 64.0}, "clip": {"max_norm": 1.0}, "recovery": {"every": 5}}
    guard = guarded(model, optimizer, config)
    generators = standin.load().default_generators
    for index, batch in enumerate(data):
        guard.step(split_loss, batch)
        if index == 10:  # leaves no trace
            before = [part.get_state() for part in generators]
            assert not guard.step(split_loss, bad(batch))
            for part, state in zip(generators, before, strict=True):
                part.set_state(state)
    assert guard.summary().applied == 20
    assert differences(bare.state_dict(), model.state_dict()) == []
    assert scaler.get_scale() == guard.scaler.get_scale()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_on_the_host(optimizer: str) -> None:
    model = make("mlp-batchnorm")
    guard = guarded(model, optimizer, {"scale": {"init": 64.0}})

    def on_host(model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).float().cpu(), batch[1].cpu())

    for batch in batches(4):
        assert guard.step(on_host, batch).applied


@pytest.mark.usefixtures("seed")
def test_optimizers_of_several_devices_take_turns() -> None:
    model = nn.ModuleDict({"a": place(nn.Linear(12, 4)), "b": nn.Linear(12, 4).to(SECOND)})
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model.values()]
    guard = Guard(model, optimizers, {"scale": {"init": 64.0}})
    for batch in batches(3):
        for part, optimizer in zip(model.values(), optimizers, strict=True):
            where = next(part.parameters()).device
            with guard.autocast():
                loss = nn.functional.cross_entropy(part(batch[0].to(where)), batch[1].to(where))
            guard.backward(loss)
            assert guard.update(optimizer).applied


# -- random numbers of the device


@pytest.mark.parametrize("where", ["standin:0", SECOND])
def test_a_retry_draws_the_same_dropout_mask(where: str, accelerator: Any) -> None:
    model = make("transformer").to(where)
    states = Recorder()
    drop = model.get_submodule("drop")
    drop.register_forward_pre_hook(lambda *_: states.append(accelerator.get_rng_state(where)))
    config = {"scale": {"init": 64.0}, "skip": {"on_nonfinite": "retry_fp32"}}
    guard = guarded(model, "adamw-foreach", config)
    batch = tuple(part.to(where) for part in batches(1)[0])
    model.faulty.forward_factor = 1e6  # type: ignore[union-attr,assignment]
    assert guard.step(loss_fn, batch).action is Action.RETRY
    half, *_, full = states.take()
    assert torch.equal(half, full)
    assert not torch.equal(full, accelerator.get_rng_state(where))


@pytest.mark.parametrize("where", ["standin:0", SECOND])
def test_a_run_continues_with_the_random_numbers_of_its_device(where: str) -> None:
    def run(guard: Guard, data: list[Batch]) -> None:
        for batch in data:
            guard.step(loss_fn, batch)

    data: list[Any] = [tuple(part.to(where) for part in batch) for batch in batches(8)]
    config = {"scale": {"init": 64.0}}
    model = make("transformer").to(where)
    guard = guarded(model, config=config)
    run(guard, data[:4])
    kept = copy.deepcopy([model.state_dict(), guard.optimizers[0].state_dict(), guard.state_dict()])
    run(guard, data[4:])

    torch.rand(3, device=where)
    again = make("transformer").to(where)
    other = guarded(again, config=config)
    again.load_state_dict(kept[0])
    other.optimizers[0].load_state_dict(kept[1])
    other.load_state_dict(kept[2])
    run(other, data[4:])
    assert differences(model.state_dict(), again.state_dict()) == []


# -- parts of a model on the host


def test_the_first_parameters_on_the_host(seed: Callable[[int], None]) -> None:
    """Flags, norms and the scale travel to the host, and are waited for."""
    seed(5)
    model = Split()
    model.norm.to(SECOND), model.last.to(SECOND)
    guard = guarded(model, "sgd", {"precision": "fp32", "recovery": {"every": 2}})
    data = [(x.cpu(), y) for x, y in batches(6)]
    for batch in data[:3]:
        assert guard.step(split_loss, batch).applied
    before = copy.deepcopy(model.state_dict())
    assert not guard.step(split_loss, bad(data[3]))
    assert differences(before, model.state_dict()) == []
    assert guard.step(split_loss, data[4]).applied
