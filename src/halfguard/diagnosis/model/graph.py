"""The autograd graph of a loss: the tensors that a backward pass would give gradients to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from halfguard.step.loss import find_loss


@dataclass(frozen=True)
class GraphLeaves:
    """The leaf tensors of a graph, as far as they can be found."""

    tensors: tuple[Tensor, ...] = ()
    complete: bool = (
        True  # False if a Python function, such as a reentrant checkpoint, may hide some
    )


def loss_in(result: Any) -> Tensor | None:
    """Return the loss in the result of a training step: the result, its first item or its "loss"."""
    loss = find_loss(result)
    if isinstance(loss, tuple | list) and loss:
        loss = loss[0]
    return loss if isinstance(loss, Tensor) else None


def find_graph_leaves(result: Any) -> GraphLeaves:
    """Find the leaves of the graph of the loss in the result of a forward pass."""
    loss = loss_in(result)
    if loss is None or loss.grad_fn is None:
        return GraphLeaves((loss,) if loss is not None and loss.requires_grad else ())
    nodes = list(_nodes(loss.grad_fn))
    ends = [getattr(node, "variable", None) for node in nodes]
    return GraphLeaves(
        tensors=tuple(end for end in ends if isinstance(end, Tensor)),
        complete=not any(isinstance(node, BackwardCFunction) for node in nodes),
    )


def _nodes(start: Any) -> Iterator[Any]:
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        yield node
        behind = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= behind
        waiting.extend(behind)
