"""Steps with a chosen loss and gradient, and bitwise comparison of states."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.precision.islands import is_island

_PLAIN = (int, float, str, bool, type(None))


class _Inject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, loss: float, grad: float, half: bool) -> Tensor:
        ctx.grad, ctx.half, ctx.shape = grad, half, parameter.shape
        return torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grad_output * ctx.grad
        grad = grad.half().float() if ctx.half else grad
        return grad.expand(ctx.shape).clone(), None, None, None


def inject(
    parameter: Tensor, loss: float = 1.0, grad: float = 1.0, *, half: bool = False
) -> Tensor:
    """Return a loss of this value with this gradient; ``half`` rounds the *scaled* gradient to FP16."""
    return _Inject.apply(parameter, loss, grad, half)


def parameter(value: float = 1.0, size: int = 3) -> nn.Parameter:
    return nn.Parameter(torch.full((size,), value))


def islands(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if is_island(module)]


def frozen(state: Any) -> Any:
    """Return a copy of a state that later steps cannot change."""
    if type(state) in _PLAIN:  # the most common case: a random generator's state has 625 numbers
        return state
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: frozen(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [frozen(value) for value in state]
    return state


def same(first: Any, second: Any) -> bool:
    """Return whether two states are bitwise equal."""
    if type(first) in _PLAIN:
        return type(first) is type(second) and bool(first == second)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.dtype is not second.dtype or first.shape != second.shape:
            return False
        return first.numpy(force=True).tobytes() == second.numpy(force=True).tobytes()
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and bool(first == second)


class Recorder:
    """Records what a loss function does, in a queue: the guard does not undo it."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()

    def append(self, item: Any) -> None:
        self._queue.put(item)

    def take(self) -> list[Any]:
        return [self._queue.get() for _ in range(self._queue.qsize())]
