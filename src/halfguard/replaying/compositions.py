"""Logarithms of probabilities, rewritten as a whole: the cure that keeps the gradient.

``log(sigmoid(x) + eps)`` loses its gradient where the probability is 0 in half, however the logarithm is
computed: the number is gone before. ``logsigmoid(x)`` has no such number. The probability may have been
assigned to a name, or shifted by an epsilon, some lines before the logarithm, so the calls are followed while
the step runs, not in the source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from halfguard.replaying.substitution import Place, run_backward, user_place

_SHIFTS = frozenset({"add", "__add__", "__radd__", "clamp", "clamp_min", "clip", "float", "to"})
_COMPLEMENTS = frozenset({"rsub", "__rsub__"})


@dataclass(frozen=True)
class Probability:
    """A tensor of probabilities, and the logits that it was computed from."""

    tensor: Tensor
    logits: Tensor
    dim: int | None = None  # of a softmax; None for a sigmoid
    is_complement: bool = False  # 1 - sigmoid(x)

    @property
    def text(self) -> str:
        """The probability as it was written, and what to write for its logarithm."""
        if self.dim is not None:
            return "log(softmax(x)) as torch.log_softmax(x, dim)"
        if self.is_complement:
            return "log(1 - sigmoid(x)) as torch.nn.functional.logsigmoid(-x)"
        return "log(sigmoid(x)) as torch.nn.functional.logsigmoid(x)"

    def log(self) -> Tensor:
        """Return the logarithm, from the logits."""
        if self.dim is not None:
            return torch.log_softmax(self.logits, self.dim)
        return nn.functional.logsigmoid(-self.logits if self.is_complement else self.logits)


class LogOfProbability(TorchFunctionMode):
    """Runs the stable form for logarithms of probabilities on one line; ``used`` is one that it replaced."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._known: dict[
            int, Probability
        ] = {}  # by the identity of the tensor, which is kept alive
        self.used: Probability | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            with self:  # the backward pass may recompute checkpointed blocks
                return run_backward(args[0])
        name = getattr(func, "__name__", "")
        source = self._known.get(id(args[0])) if args else None
        if name == "log" and source is not None and user_place() == self._place:
            self.used = source
            return source.log()
        result = func(*args, **kwargs)
        found = _probability(name, args, kwargs, source, result)
        if found is not None:
            self._known[id(result)] = found
        return result


def _probability(
    name: str, args: Any, kwargs: Any, source: Probability | None, result: Any
) -> Probability | None:
    """Return the result of a call as a probability, if it is one."""
    if name == "sigmoid":
        return Probability(result, args[0])
    if name == "softmax":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return Probability(result, args[0], -1 if dim is None else dim)
    if source is None or not isinstance(result, Tensor):
        return None
    if name in _SHIFTS:
        return replace(source, tensor=result)
    if name in _COMPLEMENTS and source.dim is None and args[1] == 1:
        return replace(source, tensor=result, is_complement=not source.is_complement)
    return None
