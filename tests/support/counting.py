"""Count the operations that code sends to a device, and the reads that wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

HOST_SYNC = "aten._local_scalar_dense.default"


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every operation that reaches the dispatcher while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return self.ops.total()

    @property
    def host_syncs(self) -> int:
        return self.ops[HOST_SYNC]
