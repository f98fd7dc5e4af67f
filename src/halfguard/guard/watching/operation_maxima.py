"""The largest magnitude of every half operation of one step, forward and backward.

A dispatch mode sees each operation below autograd and autocast, and adds one reduction to it: the smallest
and the largest value. They stay on the device and are read together when the step ends. So infinities,
headroom and trends come from the same numbers, line by line, also where no module returns them: scores of
an attention, a square inside a norm, a loss function.

The mode declares ``ignore_compile_internals``: compiled regions run compiled, with their own numbers. What is
fused inside them is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from halfguard.numerics.tensor_rows import read_all
from halfguard.tracing.call_arguments import OperationMode, tensors_in
from halfguard.tracing.operation_places import (
    ModuleStack,
    current_node,
    display_name,
    last_node_number,
    node_number,
)
from halfguard.tracing.origins import FILLS, MOVES, UNWRITTEN
from halfguard.tracing.source import locate_frame, user_frame

# Beside MOVES: they choose among numbers that were measured before.
_MOVES = MOVES | frozenset({
    "copy_", "threshold_backward", "native_dropout", "ones_like", "select_backward",
    "slice_backward", "embedding_dense_backward", "unfold_backward",
})  # fmt: skip
# Products that make the gradients of weights and inputs: where gradients vanish.
_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "convolution_backward"})
_MEASURED = (torch.float16, torch.bfloat16)
# The bits of float16: magnitude; magnitude without the last bit; exponent.
_BITS = (0x7FFF, 0x7FFE, 0x7C00)


class Place(NamedTuple):
    """The line of an operation; a backward operation has the line of its forward one."""

    module: str | None
    op: str
    file: str
    line: int
    phase: Literal["forward", "backward"] = "forward"


@dataclass(slots=True)
class Measured:
    """One result of one operation, still on the device."""

    place: Place
    low: Tensor
    high: Tensor
    numel: int
    nonzero: tuple[Tensor, ...] = ()  # by the masks of _BITS, for gradients


@dataclass(frozen=True, slots=True)
class Maximum:
    """One result of one operation, on the host."""

    place: Place
    absmax: float  # infinite or NaN if any value is
    dtype: torch.dtype
    numel: int
    nonzero: tuple[int, ...] = ()


class OperationMaxima(OperationMode):  # type: ignore[no-untyped-call]
    """Measures the operations that run while it is active; it may be entered several times."""

    def __init__(self, modules: ModuleStack) -> None:
        super().__init__()
        self._modules = modules
        self._measured: list[Measured] = []
        self._made: dict[int, Place] = {}  # by the number of the autograd node
        self._skipped: dict[Any, bool] = {}  # by operation

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run compiled."""
        return True

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        place = self._place(func)
        if place is None or self._skips(func):
            return out
        for tensor in tensors_in(out):
            if tensor.dtype in _MEASURED and _is_plain(tensor):
                self._measured.append(_measure(place, tensor, func.overloadpacket.__name__))
        return out

    def read(self) -> list[Maximum]:
        """Copy all numbers to the host, in one transfer per device. Here the host waits."""
        measured, self._measured, self._made = self._measured, [], {}
        numbers = iter(read_all([t for one in measured for t in (one.low, one.high, *one.nonzero)]))
        found = []
        for one in measured:
            (low,), (high,) = next(numbers), next(numbers)
            absmax = low if low != low else max(-low, high)  # noqa: PLR0124 - NaN
            nonzero = tuple(int(next(numbers)[0]) for _ in one.nonzero)
            found.append(Maximum(one.place, absmax, one.low.dtype, one.numel, nonzero))
        return found

    def _skips(self, func: Any) -> bool:
        skipped = self._skipped.get(func)
        if skipped is None:
            name = func.overloadpacket.__name__
            moves = name in _MOVES or name in FILLS or name in UNWRITTEN
            skipped = self._skipped[func] = moves or func.is_view or func.namespace != "aten"
        return skipped

    def _place(self, func: Any) -> Place | None:
        """Return the place of the operation that has just run; None if a checkpoint ran it again."""
        op = display_name(func.overloadpacket.__name__)
        node = current_node()
        frame = user_frame()
        if node is not None and frame is None:  # torch's own formula for a gradient
            made = self._made.get(node_number(node), Place(None, op, "", 0))
            return made._replace(phase="backward")
        file, line = ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        place = Place(self._modules.current, op, file, line)
        if node is None:
            self._remember(place)
            return place
        if frame is not None and locate_frame(frame).recomputed:
            self._remember(place)
            return None
        module = self._made.get(node_number(node), place).module
        return place._replace(module=module, phase="backward")

    def _remember(self, place: Place) -> None:
        self._made.setdefault(last_node_number(), place)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor can be measured here: not a DTensor, not fake, not part of a CUDA graph."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return False
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False
    return tensor.numel() > 0 and tensor.device.type != "meta"


def _measure(place: Place, tensor: Tensor, name: str) -> Measured:
    low, high = torch.aminmax(tensor)
    counts: tuple[Tensor, ...] = ()
    if place.phase == "backward" and name in _PRODUCTS and tensor.dtype is torch.float16:
        bits = tensor.view(torch.int16)
        counts = tuple(torch.count_nonzero(bits.bitwise_and(mask)) for mask in _BITS)
    return Measured(place, low, high, tensor.numel(), counts)
