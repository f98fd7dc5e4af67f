"""A skipped or repeated step leaves hidden states and other tensors of modules as they were."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.guard.guard import Guard
from halfguard.guard.step_batches import StepBatches
from halfguard.guard.stepping.buffers import Buffers
from halfguard.guard.stepping.step_state import StepState
from tests.support.pairs import parametrize_pairs

pytestmark = pytest.mark.usefixtures("seed")

SMALL: dict[str, Any] = {"scale": {"init": 8.0}}
BAD = torch.full((2, 5, 4), torch.nan)


class Recurrent(nn.Module):
    """Truncated backpropagation: the hidden state of one batch is the start of the next."""

    h: Any

    def __init__(self, kind: str = "gru") -> None:
        super().__init__()
        self.cell = (nn.GRU if kind == "gru" else nn.LSTM)(4, 8, batch_first=True)
        self.out = nn.Linear(8, 1)
        self.h = None

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.cell(x, self.h)
        self.h = h.detach() if isinstance(h, Tensor) else tuple(part.detach() for part in h)
        return self.out(y)


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def run(kind: str, batches: list[Tensor], *, own_loop: bool, fused: bool = False) -> Any:
    torch.manual_seed(0)
    model = Recurrent(kind)
    half = kind == "gru"  # an LSTM does not run in FP16 on a CPU
    precision = "fp16-mixed" if half else "fp32"
    optimizer = SGD(model.parameters(), lr=0.1, fused=fused)
    guard = Guard(model, optimizer, {**SMALL, "precision": precision})
    outcomes = []
    for x in batches:
        if own_loop:
            with torch.autocast("cpu", torch.float16, enabled=half):
                loss = loss_fn(model, x)
            guard.backward(loss, batch=x)
            outcomes.append(guard.update())
        else:
            outcomes.append(guard.step(loss_fn, x))
    states = model.h if isinstance(model.h, tuple) else (model.h,)
    return [o.applied for o in outcomes], [*model.parameters(), *states]


@parametrize_pairs(fused=[False, True], kind=["gru", "lstm"], at=[0, 1, 5], own_loop=[False, True])
def test_one_bad_batch_costs_one_step(kind: str, at: int, own_loop: bool, fused: bool) -> None:
    good = [torch.randn(2, 5, 4) for _ in range(8)]
    batches = [*good[:at], BAD, *good[at:]]
    applied, with_bad = run(kind, batches, own_loop=own_loop, fused=fused)
    assert applied == [index != at for index in range(9)]
    _, without = run(kind, good, own_loop=own_loop, fused=fused)
    assert all(torch.equal(a, b) for a, b in zip(with_bad, without, strict=True))


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.queue = torch.zeros(3)
        self.register_buffer("codebook", torch.zeros(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.cache = torch.zeros(1)
        self.length = 1


def held(model: nn.Module) -> tuple[StepState, Buffers]:
    """Return the state as a loop with its own forward pass has it."""
    buffers = Buffers(model)
    return StepState(model, buffers), buffers


def test_a_cache_that_grew_stays_unless_it_is_poisoned() -> None:
    model = Holder()
    tensors, _ = held(model)
    tensors.keep()
    small = model.cache
    model.cache, model.length = torch.zeros(9), 9
    tensors.restore()
    assert len(model.cache) == model.length
    model.cache = torch.full((9,), torch.nan)
    tensors.restore()
    assert model.cache is small


@pytest.mark.parametrize("name", ["queue", "codebook"])
def test_tensors_written_in_place_are_copied_once_that_was_seen(name: str) -> None:
    model = Holder()
    tensors, buffers = held(model)
    for value in range(3):
        tensors.keep()
        buffers.keep()
        getattr(model, name).fill_(value + 1)
        assert tensors.conclude(StepBatches()) == []
    tensors.keep()
    buffers.keep()
    getattr(model, name).fill_(torch.nan)
    tensors.restore()
    buffers.restore()
    assert getattr(model, name).tolist() == [3.0] * 3
    tracked = list(map(id, buffers.tensors()))
    assert len(set(tracked)) == len(tracked)


class LazyCache(nn.Module):
    """A cache made at first use, with its size beside it: one without the other is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.cache: Any = None
        self.length: int | None = None
        self.h: Any = None


def test_a_cache_made_at_first_use_stays_with_its_size() -> None:
    model = LazyCache()
    tensors, _ = held(model)
    tensors.keep()
    model.cache, model.length = torch.ones(3), 3
    tensors.restore()
    assert model.cache is not None


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Elman(nn.Module):
    """A recurrence whose state is half under autocast."""

    h: Any
    extra: Pair

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.back, self.h = nn.Linear(4, 4), nn.Linear(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.cell(x)
        y = y if self.h is None else torch.tanh(y + self.back(self.h))
        self.h = y.detach()
        return y


def test_a_repeat_after_a_step_in_half_gets_its_hidden_state_in_fp32() -> None:
    torch.manual_seed(0)
    model = Elman()
    config = {**SMALL, "skip": {"on_nonfinite": "retry_fp32"}}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config)
    model.extra = Pair(torch.ones(2, dtype=torch.float16), torch.ones(1))
    assert guard.step(loss_fn, torch.randn(2, 4)).action == "apply"
    assert model.h.dtype is torch.float16

    def breaks_in_half(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        loss: Tensor = y.float().square().mean()
        return loss + (torch.inf if y.dtype == torch.float16 else 0.0)

    assert guard.step(breaks_in_half, torch.randn(2, 4)).action == "retry_fp32"
    assert model.h.dtype is torch.float32
    assert model.extra.first.dtype is torch.float16, "what the step did not replace is as it was"
    assert guard.step(loss_fn, torch.randn(2, 4)).action == "apply"


def test_lists_that_are_linked_or_contain_themselves_are_walked_to_an_end() -> None:
    model = nn.Linear(4, 1)
    linked: Any = (torch.zeros(1), None)
    for _ in range(3000):
        linked = (torch.zeros(1), linked)
    cycle: list[Any] = [torch.zeros(1)]
    cycle.append(cycle)
    vars(model).update(linked=linked, cycle=cycle)
    guard = Guard(model, SGD(model.parameters(), lr=0.1), SMALL)
    assert guard.step(lambda m, x: m(x).float().square().mean(), torch.randn(2, 4)).applied
