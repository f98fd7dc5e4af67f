"""The result of ``audit``: operations that left the range of half in a step, and whether that mattered.

An operation is *flagged* if its half result is infinite, or 0, where the same operation in FP32 on the same
inputs is not. A flag is a *finding* if the number was used: with the FP32 number in its place, the loss or
the gradients of the step are different. All other flags are harmless.
"""

from __future__ import annotations

from math import nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.autopsy import Culprit, TensorRange
from halfguard.records.base import Record

Fault = Literal["overflow", "underflow"]
Use = Literal["loss", "gradients", "loss and gradients", "none", "not judged"]


class AuditFinding(Record):
    """An operation that left the range of half: its place, its numbers in both formats, and their use."""

    kind: ClassVar[str] = "audit finding"

    op: str = Field(description="the operation as the forward pass called it, such as mul")
    kernel: str = Field(description="what torch ran, such as aten.mul.Tensor")
    phase: Literal["forward", "backward"]
    module: str | None = Field(
        description="path in the model; empty: the model itself; None: outside"
    )
    file: str
    line: int
    code: str
    fault: Fault
    elements: int = Field(description="elements of the output that overflowed, in all calls")
    numel: int = Field(description="elements of the output, in all calls")
    calls: int = Field(default=1, description="calls of this line that were flagged")
    inputs: tuple[TensorRange, ...] = ()
    half: TensorRange = Field(description="the output as it was, in the first flagged call")
    fp32: TensorRange = Field(description="the same operation in FP32 on the same inputs")
    use: Use = "none"

    @property
    def place(self) -> str:
        """The source line as ``file:line``, as editors open it."""
        return f"{self.file}:{self.line}" if self.file else "unknown place"

    @property
    def outside(self) -> bool:
        """True if no module called the operation: it is in the loss function, for example."""
        return self.module is None

    @property
    def culprit(self) -> Culprit:
        """The same place as ``find_first_nonfinite`` reports it."""
        return Culprit(
            kind="op",
            op=self.op,
            phase=self.phase,
            module=self.module,
            file=self.file,
            line=self.line,
            code=self.code,
            kernel=self.kernel,
            dtype=self.half.dtype,
            inputs=self.inputs,
            outputs=(self.half, self.fp32),
            swallowed=self.fault,
        )

    def __str__(self) -> str:
        return str(self.culprit)


class AuditReport(Record):
    """What an audited step showed: findings first, then the flags that did no harm."""

    kind: ClassVar[str] = "audit"

    findings: tuple[AuditFinding, ...] = Field(
        default=(), description="flags that changed the step; overflows first, then in order"
    )
    harmless: tuple[AuditFinding, ...] = Field(default=(), description="flags that changed nothing")
    loss: float = nan
    loss_fp32: float = Field(default=nan, description="the loss without the findings' faults")
    loss_error: float = Field(default=0.0, description="relative difference of the two")
    gradient_error: float = Field(
        default=0.0, description="the same for all gradients together, as a norm"
    )
    not_judged: tuple[str, ...] = Field(
        default=(), description="reasons why the use of some flags is not known"
    )

    def __str__(self) -> str:
        if self.findings:
            text = [str(found) for found in self.findings]
            errors = f"loss error {self.loss_error:.1%}, gradient error {self.gradient_error:.1%}"
            return "\n".join([*text, errors])
        text = [f"no swallowed overflow; {len(self.harmless)} harmless flags"]
        return "\n".join([*text, *(f"not judged: {reason}" for reason in self.not_judged)])
