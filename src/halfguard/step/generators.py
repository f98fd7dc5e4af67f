"""Random generators of the user's own that a loss function draws from.

A repeated step must draw the same numbers. The global generators are known; a ``torch.Generator`` for noise
or augmentation belongs to the user, and is looked for where loss functions hold such things: in their
closure, their defaults, the object that they are a method of, the globals they name, and in attributes of
the model's modules.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Generator = Any  # torch.Generator, random.Random, numpy.random.Generator or RandomState


def generators_of_function(function: Callable[..., Any]) -> list[Generator]:
    """Return the generators that a function holds."""
    return _select(_held_by(function))


def generators_of_model(model: nn.Module) -> list[Generator]:
    """Return the generators that are attributes of modules."""
    return _select(value for module in model.modules() for value in vars(module).values())


def generator_state(generator: Generator) -> Any:
    """Return a copy of a generator's state."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def set_generator_state(generator: Generator, state: Any) -> None:
    """Set a generator to a state that ``generator_state`` returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


@contextmanager
def preserved_generators(generators: Iterable[Generator]) -> Iterator[None]:
    """Restore the generators' states after the block."""
    states = [(generator, generator_state(generator)) for generator in generators]
    try:
        yield
    finally:
        for generator, state in states:
            set_generator_state(generator, state)


def _select(held: Iterable[Any]) -> list[Generator]:
    kinds = _kinds()
    return list({id(value): value for value in held if isinstance(value, kinds)}.values())


def _kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy")
    own = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return (torch.Generator, random.Random, *own)


def _held_by(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _held_by(function.func)
        return
    owner = getattr(function, "__self__", None)
    if owner is None and not hasattr(function, "__code__"):
        owner = function  # an object with __call__
    yield from getattr(owner, "__dict__", {}).values()
    function = getattr(function, "__func__", function)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield value
        if not isinstance(value, (type, nn.Module)):
            yield from getattr(value, "__dict__", {}).values()
    yield from getattr(function, "__defaults__", None) or ()
    yield from (getattr(function, "__kwdefaults__", None) or {}).values()
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    known = getattr(function, "__globals__", {})
    yield from (known[name] for name in names if name in known)
