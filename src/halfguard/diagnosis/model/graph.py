"""The graph behind a loss: which tensors a backward pass would give gradients to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction


@dataclass(frozen=True)
class Leaves:
    """What a graph ends in; ``whole`` if nothing in it hides further leaves."""

    found: tuple[Tensor, ...] = ()
    whole: bool = True  # a function in Python, such as a reentrant checkpoint, may hold others


def loss_in(result: Any) -> Tensor | None:
    """The loss in what a loss function or a training step returned: itself, its first, or its "loss"."""
    if isinstance(result, Mapping):
        result = result.get("loss")
    if isinstance(result, tuple | list) and result:
        result = result[0]
    return result if isinstance(result, Tensor) else None


def leaves(result: Any) -> Leaves:
    """Walk the graph of the loss in a forward pass's result."""
    loss = loss_in(result)
    if loss is None or loss.grad_fn is None:
        return Leaves((loss,) if loss is not None and loss.requires_grad else ())
    nodes = list(_nodes(loss.grad_fn))
    ends = [getattr(node, "variable", None) for node in nodes]
    return Leaves(
        found=tuple(end for end in ends if isinstance(end, Tensor)),
        whole=not any(isinstance(node, BackwardCFunction) for node in nodes),
    )


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        yield node
        behind = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= behind
        waiting.extend(behind)
