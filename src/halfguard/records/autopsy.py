"""The result of replaying an incident: whether it was reproduced, where it began, what prevents it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import Record
from halfguard.records.step import Cause, StepRow

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
    optimizer: str = ""  # in whose step it ran, and where that was made

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
        where = f"in the optimizer's step ({self.optimizer})" if self.optimizer else where
        region = ", a region of torch.compile" if self.compiled else ""
        if self.kind != "op":
            what = f"{self.kind} {self.name!r} contained NaN or Inf when the step began; "
            what += f"first used by {self.op}"
        elif self.swallowed:
            what = f"{self.op} ({self.kernel}): swallowed {self.swallowed} in the {self.phase} pass"
        elif self.intended:
            what = f"{self.op} inserted an Inf that reached the result"
        else:
            what = (
                f"{self.op} ({self.kernel}) returned the first NaN or Inf in the {self.phase} pass"
            )
        lines = [f"{what}, {where}{region}", f"  {self.place}"]
        if self.code:
            lines.append(f"    {self.code}")
        return "\n".join([*lines, *(f"  {part}" for part in (*self.inputs, *self.outputs))])


Reproduced = Literal["bitwise", "same fault", "no"]
CureKind = Literal["data", "weights", "operation", "island", "scale", "precision"]


FAR = 0.2  # relative error of gradients from which a finite step is no good one


class ReplayTrial(Record):
    """The incident's step, run again with one change."""

    kind: ClassVar[str] = "trial"

    name: str = Field(description="the change, in a few words")
    good: bool = Field(description="finite; after a spike, also within the range of healthy steps")
    loss: float = float("nan")
    grad_norm: float = float("nan")
    note: str = ""
    error_as_written: float | None = Field(
        default=None, description="relative error of the gradients against FP32 as written"
    )
    error_as_meant: float | None = Field(
        default=None, description="the same against a float64 evaluation of the intended formula"
    )
    largest_scale: float | None = Field(
        default=None, description="largest loss scale tried at which the step is finite"
    )


class Cure(Record):
    """The recommended change, and the trial that showed that it works."""

    kind: ClassVar[str] = "cure"

    what: CureKind
    sentence: str
    trial: str = Field(description="name of the trial that was good")
    patch: str = Field(default="", description="lines for a config, a plan or the source")
    code: str = Field(default="", description="of the failure that it fixes, in the catalogue")
    scale: float | None = Field(
        default=None,
        description="loss scale to start with, if the initial one is too high for this step",
    )


def is_source_patch(patch: str) -> bool:
    """Return whether a patch is one of the source, not lines for a config or a plan."""
    return patch.startswith("--- ")


class Autopsy(Record):
    """The findings of a replay; everything in it was observed, nothing is guessed."""

    kind: ClassVar[str] = "autopsy"

    incident: str
    step: StepRow
    cause: Cause | None
    reproduced: Reproduced
    how: str = Field(description="precision, loss scale and device of the repeated step")
    differences: tuple[str, ...] = Field(
        default=(), description="differences from the original run"
    )
    culprit: Culprit | None = None
    samples: tuple[int, ...] = Field(default=(), description="samples of the batch that cause it")
    micro_batch: int = 0
    trials: tuple[ReplayTrial, ...] = ()
    saturation: float | None = Field(
        default=None,
        description=(
            "relative difference between the FP32 gradients as written and float64 gradients as intended"
        ),
    )
    cure: Cure | None = None
    suspects: tuple[str, ...] = Field(
        default=(), description="possible causes if it was not reproduced"
    )
