"""Kinds of state that a loss function may change: the table of docs/explanation/guarded-step.md."""

from __future__ import annotations

import array
import itertools
import random
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

PUT_BACK, NAMED = "restored", "named"
Loss = Callable[[nn.Module, Any], Tensor]
WIDTH = 4


class Net(nn.Module):
    """A linear model with room for state; ``change`` is called in each forward pass."""

    shared: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.change: Callable[[Tensor], object] = lambda y: None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.change(y.detach().float())
        return y


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss without state of its own."""
    return model(batch).float().square().mean()


@dataclass
class Job:
    """A model, its loss function, and a function that reads the state at the end."""

    model: Net
    read: Callable[[], Any]
    loss_fn: Loss = loss_fn
    batch: Callable[[Tensor], Any] = lambda x: x


@dataclass(frozen=True)
class Kind:
    """One kind of state; ``text`` describes it in the docs."""

    text: str
    outcome: str
    make: Callable[[], Job]


@dataclass
class Meter:
    total: float = 0.0
    seen: list[float] = field(default_factory=list)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


COUNTER = 0
CURRENT: ContextVar[int] = ContextVar("CURRENT", default=0)


def _attribute() -> Job:
    model = Net()
    vars(model)["calls"] = 0

    def change(_: Tensor) -> None:
        vars(model)["calls"] += 1

    model.change = change
    return Job(model, lambda: vars(model)["calls"])


def _buffer() -> Job:
    model = Net()
    model.register_buffer("mean", torch.zeros(WIDTH))
    model.change = lambda y: model.mean.mul_(0.9).add_(y.mean(0))  # type: ignore[operator]
    return Job(model, lambda: model.mean)


def _batch_norm() -> Job:
    model = Net()
    mean, var = torch.zeros(WIDTH), torch.ones(WIDTH)
    vars(model).update(mean=mean, var=var)
    model.change = lambda y: functional.batch_norm(y, mean, var, training=True)
    return Job(model, lambda: [mean, var])


def _frozen() -> Job:
    model, teacher = Net(), Net().requires_grad_(requires_grad=False)

    def change(_: Tensor) -> None:
        for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
            own.data.mul_(0.9).add_(other.data, alpha=0.1)

    model.change = change
    return Job(model, lambda: list(teacher.parameters()))


def _hidden() -> Job:
    model = Net()
    model.h = None  # type: ignore[assignment]

    def change(y: Tensor) -> None:
        model.h = y if model.h is None else 0.5 * model.h + y  # type: ignore[assignment, operator]

    model.change = change
    return Job(model, lambda: model.h)


def _growing() -> Job:
    model = Net()
    bank = {"keys": torch.zeros(0, WIDTH)}

    def change(y: Tensor) -> None:
        bank["keys"] = torch.cat([bank["keys"], y])

    model.change = change
    return Job(model, lambda: bank["keys"])


def _in_container(make: Callable[[], Any], change: Callable[[Any, Tensor], object]) -> Job:
    model, held = Net(), make()
    model.change = partial(change, held)
    return Job(model, lambda: held)


def _numbers() -> Job:
    model, count = Net(), 0

    def counting(model: nn.Module, batch: Any) -> Tensor:
        nonlocal count
        count += 1
        return loss_fn(model, batch) * (1 + count)

    return Job(model, lambda: count, counting)


def _global() -> Job:
    global COUNTER  # noqa: PLW0603
    COUNTER = 0

    def counting(model: nn.Module, batch: Any) -> Tensor:
        global COUNTER  # noqa: PLW0603
        COUNTER += 1
        return loss_fn(model, batch)

    return Job(Net(), lambda: COUNTER, counting)


def _class() -> Job:
    Net.shared = 0

    def change(_: Tensor) -> None:
        Net.shared += 1

    model = Net()
    model.change = change
    return Job(model, lambda: Net.shared)


def _function() -> Job:
    def counting(model: nn.Module, batch: Any) -> Tensor:
        vars(counting)["calls"] = vars(counting).get("calls", 0) + 1
        return loss_fn(model, batch)

    return Job(Net(), lambda: vars(counting)["calls"], counting)


class Criterion:
    """A callable object that weighs its loss by what it has seen."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.helper = SimpleNamespace(seen=[0])

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the weighted loss."""
        self.weight *= 1.1
        self.helper.seen.append(len(self.helper.seen))
        return loss_fn(model, batch) * self.weight


def _criterion() -> Job:
    criterion = Criterion()
    return Job(Net(), lambda: [criterion.weight, criterion.helper.seen], criterion)


def _hook() -> Job:
    model, seen = Net(), [0.0]
    model.linear.register_forward_hook(lambda *_: seen.append(seen[-1] + 1))
    return Job(model, lambda: seen)


def _hooks() -> Job:
    model = Net()
    model.linear.register_forward_hook(lambda *_: None)
    model.change = lambda _: model.linear.register_forward_hook(lambda *_: None)
    return Job(model, lambda: len(model.linear._forward_hooks))


def _weak() -> Job:
    model = Net()
    held: WeakKeyDictionary[nn.Linear, float] = WeakKeyDictionary({model.linear: 0.0})

    def change(y: Tensor) -> None:
        held[model.linear] += float(y.mean())

    model.change = change
    return Job(model, lambda: list(held.values()))


def _seldom() -> Job:
    model, held = Net(), SimpleNamespace(calls=0, last=0.0)

    def change(y: Tensor) -> None:
        held.calls += 1
        if held.calls % 3 == 0:
            held.last = float(y.mean())

    model.change = change
    return Job(model, lambda: [held.calls, held.last])


def _replaced() -> Job:
    model, calls = Net(), [0]
    teacher = SimpleNamespace(of=torch.zeros(WIDTH))

    def change(y: Tensor) -> None:
        nonlocal teacher
        calls[0] += 1
        y.add_(teacher.of)
        if calls[0] % 3 == 0:
            teacher = SimpleNamespace(of=y.mean(0))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return loss_fn(model, batch) * (1 + teacher.of.abs().sum())

    model.change = change
    return Job(model, lambda: [calls, teacher.of], loss)


def _flags() -> Job:
    model = Net()
    model.linear.bias.requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        for parameter in model.parameters():
            parameter.requires_grad_(not parameter.requires_grad)
        return loss_fn(model, batch)

    return Job(model, lambda: [p.requires_grad for p in model.parameters()], loss)


def _same_values() -> Job:
    model, held, calls = Net(), torch.zeros(1), [0]

    def change(_: Tensor) -> None:
        calls[0] += 1
        held.add_(float(calls[0] > 4))

    model.change = change
    return Job(model, lambda: held)


def _context_variable() -> Job:
    CURRENT.set(0)
    model = Net()
    model.change = lambda _: CURRENT.set(CURRENT.get() + 1)
    return Job(model, CURRENT.get)


class Noise:
    """A loss function that draws from generators of its own, and from one of the model's."""

    def __init__(self) -> None:
        self.own: dict[str, Any] = {"torch": torch.Generator().manual_seed(1)}
        self.python = [random.Random(2)]
        self.old = np.random.RandomState(4)

    def loss(self, model: Any, batch: Any) -> Tensor:
        scale = self.python[0].random() + model.rng.random() + self.old.random_sample()
        return loss_fn(model, batch + torch.rand(WIDTH, generator=self.own["torch"]) * scale)


def _generators() -> Job:
    model, noise = Net(), Noise()
    vars(model)["rng"] = rng = np.random.default_rng(3)
    closed = torch.Generator().manual_seed(5)

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return noise.loss(model, batch) * torch.rand((), generator=closed)

    drawn: list[Any] = [noise.python[0].random, noise.old.random_sample, rng.random]
    return Job(model, lambda: [closed.get_state(), *(draw() for draw in drawn)], noisy)


def _batch(change: Callable[[Any], object], batch: Callable[[Tensor], Any]) -> Job:
    def changing(model: nn.Module, batch: Any) -> Tensor:
        change(batch)
        return loss_fn(model, torch.as_tensor(batch["x"]))

    return Job(Net(), lambda: 0, changing, batch)


def _halve(batch: Any) -> None:
    batch["x"] = batch["x"] * 0.5


def _iterator(make: Callable[[], Iterator[float]]) -> Job:
    numbers = make()

    def drawing(model: nn.Module, batch: Any) -> Tensor:
        return loss_fn(model, batch) * (1.0 + next(numbers))

    return Job(Net(), lambda: 0, drawing)


def _bound_iterator() -> Job:
    numbers = itertools.count(0.0, 0.1).__next__

    def drawing(model: nn.Module, batch: Any) -> Tensor:
        return loss_fn(model, batch) * (1.0 + numbers())

    return Job(Net(), lambda: 0, drawing)


def _database() -> Job:
    numbers = sqlite3.connect(":memory:")
    numbers.execute("create table seen (x)")

    def writing(model: nn.Module, batch: Any) -> Tensor:
        numbers.execute("insert into seen values (1)")
        return loss_fn(model, batch)

    return Job(Net(), lambda: 0, writing)


def _generator_function() -> Iterator[float]:
    number = 0.0
    while True:
        number += 0.25
        yield number


def _append(held: Any, y: Tensor) -> None:
    held.append(float(y.mean()))


def _set_meter(meter: Meter, y: Tensor) -> None:
    meter.total += float(y.mean())
    meter.seen.append(meter.total)


def _add_to_array(held: Any, y: Tensor) -> None:
    held += y.mean(0).numpy()


def _add_one(held: Any, _: Tensor) -> None:
    held.count += 1


def _add_key(held: Any, _: Tensor) -> None:
    held[len(held)] = 1


KINDS = {
    "attribute": Kind("a number that is an attribute of a module", PUT_BACK, _attribute),
    "buffer": Kind("a buffer that is written in place", PUT_BACK, _buffer),
    "batch_norm": Kind("statistics that `F.batch_norm` writes", PUT_BACK, _batch_norm),
    "frozen": Kind("frozen weights, such as a teacher's", PUT_BACK, _frozen),
    "hidden": Kind("a hidden state that is replaced", PUT_BACK, _hidden),
    "growing": Kind("a growing tensor in a dict", PUT_BACK, _growing),
    "list": Kind("a list", PUT_BACK, lambda: _in_container(list, _append)),
    "deque": Kind("a deque", PUT_BACK, lambda: _in_container(lambda: deque([0.0], 3), _append)),
    "array": Kind(
        "an `array.array`", PUT_BACK, lambda: _in_container(lambda: array.array("d"), _append)
    ),
    "ordered": Kind("an `OrderedDict`", PUT_BACK, lambda: _in_container(OrderedDict, _add_key)),
    "set": Kind("a set", PUT_BACK, lambda: _in_container(set, lambda held, _: held.add(len(held)))),
    "numpy": Kind(
        "a NumPy array", PUT_BACK, lambda: _in_container(lambda: np.zeros(WIDTH), _add_to_array)
    ),
    "object": Kind(
        "an object that contains objects", PUT_BACK, lambda: _in_container(Meter, _set_meter)
    ),
    "slots": Kind("an object with slots", PUT_BACK, lambda: _in_container(Slotted, _add_one)),
    "closure": Kind("a variable of the enclosing function", PUT_BACK, _numbers),
    "global": Kind("a global variable", PUT_BACK, _global),
    "class": Kind("an attribute of a class", PUT_BACK, _class),
    "function": Kind("an attribute of a function", PUT_BACK, _function),
    "callable": Kind("attributes of a callable object", PUT_BACK, _criterion),
    "hook": Kind("state that a hook changes", PUT_BACK, _hook),
    "hooks": Kind("the hooks of a module that already has hooks", PUT_BACK, _hooks),
    "weak": Kind("a dict with weak keys or values", PUT_BACK, _weak),
    "seldom": Kind(
        "an attribute that changes only at some steps, together with others", PUT_BACK, _seldom
    ),
    "replaced": Kind("a variable that is replaced only at some steps", PUT_BACK, _replaced),
    "flags": Kind("which weights are trained (`requires_grad`)", PUT_BACK, _flags),
    "same_values": Kind("a tensor whose values do not change at first", PUT_BACK, _same_values),
    "context": Kind("a context variable", PUT_BACK, _context_variable),
    "generators": Kind(
        "random generators of torch, Python and NumPy, wherever they are stored",
        PUT_BACK,
        _generators,
    ),
    "batch_item": Kind(
        "an item of the batch that is replaced",
        PUT_BACK,
        lambda: _batch(_halve, lambda x: {"x": x.clone()}),
    ),
    "batch_tensor": Kind(
        "a tensor of the batch that is written in place",
        PUT_BACK,
        lambda: _batch(lambda batch: batch["x"].data.mul_(0.5), lambda x: {"x": x.clone()}),
    ),
    "batch_array": Kind(
        "a NumPy array of the batch",
        PUT_BACK,
        lambda: _batch(
            lambda batch: np.multiply(batch["x"], 0.5, out=batch["x"]),
            lambda x: {"x": x.numpy().copy()},
        ),
    ),
    "iterator": Kind(
        "an iterator", NAMED, lambda: _iterator(lambda: iter([0.1 * n for n in range(99)]))
    ),
    "generator": Kind("a running generator", NAMED, lambda: _iterator(_generator_function)),
    "count": Kind(
        "an `itertools.count`", NAMED, lambda: _iterator(lambda: itertools.count(0.0, 0.1))
    ),
    "bound": Kind("the method of an iterator", NAMED, _bound_iterator),
    "database": Kind("an SQLite database", NAMED, _database),
}
