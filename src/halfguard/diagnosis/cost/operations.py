"""Count the operations of a step, those that only change a dtype, and the FLOPs of its products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class OperationCounts(NamedTuple):
    """The counts of one step."""

    total: int
    casts: int
    flops: int  # of matrix products, convolutions and attention, which half makes faster


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.casts = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        if func is torch.ops.aten._to_copy.default and "dtype" in (kwargs or {}):
            self.casts += 1
        return func(*args, **(kwargs or {}))


def count_operations(step: Callable[[], object]) -> OperationCounts:
    """Run ``step`` twice and count its operations, casts and FLOPs."""
    with _Counter() as counter:
        step()
    with FlopCounterMode(display=False) as arithmetic:
        step()
    return OperationCounts(counter.count, counter.casts, arithmetic.get_total_flops())
