"""What a family file says about its one-argument operations, so that nobody lists them twice.

A half dtype has 65,536 values, so a unary operation can be checked on every one of them. The check
needs the operation, its exact value and its exact slope (both in float64), and the documented cap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

TensorMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class UnaryOp:
    """One operation beside its truth.

    ``reference`` and ``derivative`` take the same tensor as ``op``, whose dtype sets the cap, and
    answer in float64. The slope has a formula of its own: autograd of a float64 reference cancels
    in the tails, where a gradient is easiest to lose.
    """

    name: str
    op: TensorMap
    reference: TensorMap
    derivative: TensorMap
    cap: str
