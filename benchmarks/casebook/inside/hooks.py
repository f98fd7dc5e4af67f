"""Reach the models of a program that is not changed: the moment before one is called to train."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

T = TypeVar("T")
Reached = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]


def on_training_call(act: Reached) -> None:
    """Call ``act(model, args, kwargs)`` before each call of an outermost module that trains."""
    call: Any = nn.Module.__call__
    inside = False

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return call(self, *args, **kwargs)
        inside = True
        try:
            if torch.is_grad_enabled() and self.training and trained(self):
                act(self, args, kwargs)
            return call(self, *args, **kwargs)
        finally:
            inside = False

    nn.Module.__call__ = watched  # type: ignore[method-assign]


def trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def alive(kind: type[T]) -> list[T]:
    """Return the objects of a class that the program holds now; not proxies, which may be dead."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def outermost_modules() -> list[nn.Module]:
    """Return the modules that are no part of another one, and have parameters."""
    modules = [one for one in alive(nn.Module) if any(True for _ in one.parameters())]
    inner = {id(part) for one in modules for part in one.modules() if part is not one}
    return [one for one in modules if id(one) not in inner]


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers with a parameter of the model; if none has one, all."""
    own = {id(parameter) for parameter in model.parameters()}
    every = optimizers()
    found = [one for one in every if own & parameters_of(one)]
    return found or every


def optimizers() -> list[Optimizer]:
    """Return the program's optimizers, without those that frameworks wrap around them."""
    wrapper = re.compile("Lightning|Accelerated")
    return [one for one in alive(Optimizer) if not wrapper.match(type(one).__name__)]


def parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


class Together(nn.Module):
    """Several modules that share an optimizer, called as one of them."""

    def __init__(self, called: nn.Module, others: list[nn.Module]) -> None:
        super().__init__()
        self.called, self.others = called, nn.ModuleList(others)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)


def whole_model(called: nn.Module) -> nn.Module:
    """Return the module, with those beside it that the same optimizers train."""
    held = {number for one in optimizers_of(called) for number in parameters_of(one)}
    own = {id(parameter) for parameter in called.parameters()}
    others = [
        one
        for one in outermost_modules()
        if one is not called and held & ({id(p) for p in one.parameters()} - own)
    ]
    return Together(called, others) if others and held & own else called


def weights_are_finite() -> bool:
    """Return whether everything that an optimizer trains is finite now."""
    held = (p for one in optimizers() for group in one.param_groups for p in group["params"])
    return all(bool(torch.isfinite(parameter).all()) for parameter in held)
