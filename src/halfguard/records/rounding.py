"""The result of ``rounding``: which lines lose the digits of a 16-bit step.

An effect is what the rounding of a line does to the loss, or to the gradients: its own rounding errors, times
the derivative with respect to what was rounded. Effects on the loss have signs and add up to its error.
Effects on the gradients are measured along their error, and add up to its norm. The root of the sum of
squares of the single effects stands beside each sum: effects of both signs hide in a sum.
"""

from __future__ import annotations

from math import nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record

Rounding = Literal["operation", "cast", "cast of weights"]


class Effect(FloatRecordPart):
    """What some roundings do to the loss and to the gradients."""

    loss: float = Field(default=0.0, description="sum of the effects on the loss")
    loss_rms: float = Field(default=0.0, description="root of the sum of their squares")
    gradient: float = Field(
        default=0.0, description="sum of the effects along the gradients' error"
    )
    gradient_rms: float = 0.0
    backward: float = Field(default=0.0, description="the backward pass's part of `gradient`")


class RoundedLine(Effect):
    """The roundings of one kind in a line of code."""

    file: str
    line: int
    code: str
    rounding: Rounding
    ops: tuple[str, ...]
    modules: tuple[str, ...] = Field(description="paths in the model; empty: outside of it")
    calls_module: str = Field(
        default="", description="the module of torch that the line calls, with * for an index"
    )
    calls: int

    @property
    def place(self) -> str:
        """The source line as ``file:line``, as editors open it."""
        return f"{self.file}:{self.line}" if self.file else "unknown place"


class RoundedModule(Effect):
    """All roundings in a module, without those in modules inside it."""

    module: str


class LineInFloat(FloatRecordPart):
    """A line that costs more than rounding must, and the error of the step without its roundings."""

    place: str
    code: str
    modules: tuple[str, ...] = Field(default=(), description="as in `RoundedLine`")
    calls_module: str = ""
    by: Literal["loss", "gradient"] = Field(description="where it shows most")
    cost: float = Field(description="error of the step with the roundings of this line alone")
    must: float = Field(description="what rounding must cost at this depth")
    before: float = Field(description="error of the step")
    after: float = Field(description="error with this line in FP32, predicted")
    tried: float = Field(default=nan, description="error with this line in FP32, run; NaN: not run")

    @property
    def share(self) -> float:
        """The part of the lost accuracy, as a variance, that this line costs."""
        return max(0.0, 1 - (self.after / self.before) ** 2) if self.before else 0.0

    @property
    def confirmed(self) -> bool:
        """True if the step, run with this line in FP32, has at most half of the error."""
        return self.tried <= self.before / 2

    def __str__(self) -> str:
        what = "the loss" if self.by == "loss" else "the gradients"
        now = self.after if self.tried != self.tried else self.tried
        return (
            f"{self.place}: {self.code}\n  costs {self.share:.0%} of the error of {what}; in FP32 "
            f"their error falls from {self.before:.2g} to {now:.2g}"
        )


class RoundingReport(Record):
    """Where the digits of one step go: lines and modules, largest effect first."""

    kind: ClassVar[str] = "rounding"

    precision: str
    loss: float
    loss_error: float = Field(description="loss of the step minus the exact loss")
    loss_predicted: float = Field(description="the same as the sum of all effects")
    gradient_norm: float = Field(description="norm of the exact gradients")
    gradient_error: float = Field(description="norm of the error of the gradients")
    gradient_predicted: float = Field(description="the same as the sum of all effects")
    depth: int = Field(
        description="roundings on the longest path through the forward and backward passes"
    )
    scale: float = Field(description="loss scale of the step")
    lines: tuple[RoundedLine, ...] = ()
    modules: tuple[RoundedModule, ...] = ()
    findings: tuple[LineInFloat, ...] = Field(
        default=(),
        description=(
            "lines that cost more than the unavoidable rounding error at this depth and dtype"
        ),
    )
    not_judged: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.findings:
            return "\n".join(map(str, self.findings))
        relative = self.gradient_error / self.gradient_norm if self.gradient_norm else 0.0
        return (
            f"no line costs more than the unavoidable rounding error in {self.precision}: gradient error "
            f"{relative:.2g}, of the loss {self.loss_error:+.2g}"
        )
