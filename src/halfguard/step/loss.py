"""The loss in the result of a loss function: a tensor, or a mapping with a ``"loss"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from halfguard.errors import UsageError

# The model as Any: a user's function may ask for its own class.
LossFunction = Callable[[Any, Any], "Tensor | Mapping[str, Any]"]


def find_loss(result: Any) -> Any:
    """Return the entry ``"loss"`` of a mapping, and anything else as it is; the caller checks its type."""
    return result.get("loss") if isinstance(result, Mapping) else result


def scalar_loss(result: Any) -> Tensor:
    """Return the loss as a tensor without dimensions, or raise a UsageError that says what came instead."""
    loss = find_loss(result)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise UsageError(
            f"The loss function returned {_describe(result)}, but a loss must be a tensor with "
            "one element.",
            cure=(
                "Return loss.mean(), or a mapping with such a tensor under the key 'loss', from "
                "loss(model, batch)."
            ),
        )
    return loss if loss.dim() == 0 else loss.reshape(())


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(repr, value)) or 'no keys'}"
    return f"a {type(value).__name__}"
