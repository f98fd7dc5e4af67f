"""Compare the states of two training runs bit by bit, and repeat runs on devices that are deterministic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def state_of(model: nn.Module, optimizers: Sequence[Optimizer], *others: Any) -> dict[str, Any]:
    """Return a copy of everything that training changes, flat, on the CPU."""
    parts = {"model": model.state_dict(), "optimizer": [o.state_dict() for o in optimizers]}
    return dict(_flatten({**parts, "others": list(others)}, ""))


def differences(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Return a description of what is not bitwise equal, or an empty string."""
    paths = sorted(first.keys() | second.keys())
    found = [path for path in paths if not _same(first.get(path), second.get(path))]
    if not found:
        return ""
    shown = ", ".join(path.removeprefix(".") for path in found[:3])
    return f"{len(found)} of {len(paths)} values differ: {shown}"


def _flatten(state: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _flatten(value, f"{path}.{key}")
    elif isinstance(state, list | tuple):
        yield from _flatten(dict(enumerate(state)), path)
    else:
        yield path, state.detach().cpu().clone() if isinstance(state, Tensor) else state


def _same(left: Any, right: Any) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return type(left) is type(right) and bool(left == right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    # As bytes: equal NaN are the same state, and 0.0 is not -0.0.
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (left, right)))


@contextmanager
def deterministic() -> Iterator[None]:
    """Ask torch for deterministic kernels where it has them, and for no search among several."""
    mode, cudnn = torch.get_deterministic_debug_mode(), torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = before
