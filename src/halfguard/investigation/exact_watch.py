"""Follow bad numbers to their origin, and run the operation at the origin once more in FP64.

If the result is finite there, the format was too small for it. If it is not, the operation has no finite
value at these inputs: a division by zero, for example, where a lower precision may have made the zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from halfguard.records.culprit import Culprit
from halfguard.replaying.function_modes import user_place
from halfguard.tracing.auditing.fp32_call import Call, undispatched
from halfguard.tracing.call_arguments import tensors_in
from halfguard.tracing.module_stack import ModuleStack
from halfguard.tracing.operation_watch import OperationWatch

_MOST = 50  # origins that are run again
_NARROW = (torch.float16, torch.bfloat16, torch.float32)
_UNKNOWN = math.nan
_HIDES = ("nan_to_num", "nan_to_num_")


class ExactWatch(OperationWatch):  # type: ignore[no-untyped-call]
    """Finds origins; ``exact`` has the largest result in FP64 by the index of the origin."""

    def __init__(self, modules: ModuleStack, outermost: CodeType) -> None:
        super().__init__(modules, outermost)
        self.exact: dict[int, float] = {}
        self.masks: dict[int, Culprit] = {}  # the infinity on purpose that an origin made into NaN
        self.hides: tuple[str, int] | None = None  # a line that made bad numbers finite
        self._newest = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.last is not None and func.overloadpacket.__name__ in _HIDES:
            self._note_hiding(args[0])
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.last is not None and self.last.index > self._newest:
            self._newest = self.last.index
            if len(self.exact) < _MOST and self.last.culprit.kind == "op":
                call = Call(func, args, kwargs or {})
                self.exact[self._newest] = _in_fp64(call, args, kwargs or {})
                self._note_mask(call)
        return out

    def _note_hiding(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and self.origins.get(tensor) is not None:
            self.hides = self.hides or user_place()

    def _note_mask(self, call: Call) -> None:
        for one in call.tensors:
            known = self.origins.get(one.tensor)
            if known is not None and known.intended and known.index < self._newest:
                self.masks[self._newest] = known.culprit


def _in_fp64(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return the largest magnitude of the result in FP64; infinite if it is not finite, NaN if unknown."""
    if call.written or not call.can_repeat:  # the inputs are gone, or it draws random numbers
        return _UNKNOWN
    try:
        with undispatched(), torch.no_grad():
            out = call.func(
                *map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()}
            )
            results = [t for t in tensors_in(out) if t.is_floating_point() and t.numel()]
            if not results:
                return _UNKNOWN
            largest = max(float(result.abs().max()) for result in results)
    except Exception:  # noqa: BLE001 - a kernel without an FP64 form
        return _UNKNOWN
    return math.inf if math.isnan(largest) else largest


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else value
    return [_wide(item) for item in value] if isinstance(value, list | tuple) else value
