"""The description of a one-argument operation, from which tests and documentation are made.

A half dtype has 65,536 values, so a unary operation can be checked on all of them. The check needs
the operation, its exact value and its exact slope (both in float64), and the documented cap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class UnaryOp:
    """One operation with its exact value and slope.

    ``reference`` and ``derivative`` take the same tensor as ``op``, whose dtype sets the cap, and
    return float64. The slope has its own formula: autograd of a float64 reference cancels in the
    tails, where a gradient is lost most easily.
    """

    name: str
    op: TensorMap
    reference: TensorMap
    derivative: TensorMap
    cap: str
