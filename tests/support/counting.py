"""Count the operations that code sends to a device, and the reads that wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from halfguard.guard.stepping.gate import Gate

HOST_SYNC = "aten._local_scalar_dense.default"


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every operation that reaches the dispatcher while it is active.

    On a CPU, ``tolist`` reaches no dispatcher; on any other device it waits. So the guard's own read of a
    row is counted as a sync.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: Counter[str] = Counter()

    def __enter__(self) -> OpCounter:
        read = self._read = Gate.read

        def counted(row: Tensor) -> list[float]:
            self.ops[HOST_SYNC] += 1
            return read(row)

        Gate.read = staticmethod(counted)  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        Gate.read = staticmethod(self._read)  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

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


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the number of elements of the largest tensor that operations make beside one that is there."""

    def __init__(self, there: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._there, self.elements = there.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple) else (result,):
            if isinstance(out, Tensor) and out.untyped_storage().data_ptr() != self._there:
                self.elements = max(self.elements, out.numel())
        return result
