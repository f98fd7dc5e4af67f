"""The operation that produced the first non-finite number: the result of ``find_first_nonfinite``."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Literal

CulpritKind = Literal["op", "parameter", "buffer", "input"]


@dataclass(frozen=True, slots=True)
class TensorRange:
    """The range of values of one input or output of an operation."""

    name: str  # the argument's name in the operation, or "output"
    shape: tuple[int, ...]
    dtype: str
    low: float  # of the finite values; NaN if there is none
    high: float
    nan: int
    posinf: int
    neginf: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        counts = {"NaN": self.nan, "+inf": self.posinf, "-inf": self.neginf}
        bad = "".join(f", {count} {what}" for what, count in counts.items() if count)
        values = f"{self.low:.6g} to {self.high:.6g}" if not isnan(self.low) else "nothing finite"
        return f"{self.name} {shape} {self.dtype}: {values}{bad}"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The source of the first non-finite number.

    It is an operation with finite inputs (``kind="op"``), or a tensor that was already non-finite when the
    step began. Then ``name`` is the name of that tensor, and ``place`` is where it was first used.
    """

    kind: CulpritKind
    op: str  # the operation as the forward pass called it, such as "exp"
    phase: Literal["forward", "backward"]
    module: str | None  # path in the model, empty for the model itself; None outside the model
    file: str  # the user's own line; empty if it could not be found
    line: int
    code: str
    kernel: str = ""  # what torch ran, such as "aten.div.Tensor" in the backward pass of sqrt
    name: str = ""
    dtype: str = ""
    inputs: tuple[TensorRange, ...] = ()
    outputs: tuple[TensorRange, ...] = ()
    compiled: bool = False  # inside a region of torch.compile, which was run eagerly to look inside
    intended: bool = False  # a constant infinity, such as a mask, that reached the result itself
    swallowed: Literal["", "overflow", "underflow"] = ""  # loss and gradients are finite, but wrong

    @property
    def place(self) -> str:
        """The source line as ``file:line``, as editors open it."""
        return f"{self.file}:{self.line}" if self.file else "unknown place"

    def __str__(self) -> str:
        where = (
            "outside the model"
            if self.module is None
            else f"in {self.module or 'the model itself'}"
        )
        region = ", a region of torch.compile" if self.compiled else ""
        if self.kind != "op":
            what = f"{self.kind} {self.name!r} was not finite when the step began; first used by {self.op}"
        elif self.swallowed:
            what = f"{self.op} ({self.kernel}): swallowed {self.swallowed} in the {self.phase} pass"
        elif self.intended:
            what = f"{self.op} inserted an infinity that reached the result"
        else:
            what = f"{self.op} ({self.kernel}) made the first bad number in the {self.phase} pass"
        lines = [f"{what}, {where}{region}", f"  {self.place}"]
        if self.code:
            lines.append(f"    {self.code}")
        return "\n".join([*lines, *(f"  {part}" for part in (*self.inputs, *self.outputs))])
