"""What a precision costs: seconds and bytes of one training step, and what follows from them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.base import Record
from halfguard.records.finding import Finding


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemoryParts(_Part):
    """Bytes by what they are kept for; a storage belongs to one part only."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = Field(default=0, description="its state, and master weights if it has them")
    activations: int = Field(
        default=0, description="saved by the forward pass for the backward one"
    )
    weight_copies: int = Field(default=0, description="weights that autocast cast to half")
    buffers: int = 0
    other: int = Field(default=0, description="the batch, and what lives within one operation")

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in type(self).model_fields)

    @property
    def standing(self) -> int:
        """What a step finds and leaves: it does not depend on the batch."""
        return self.weights + self.optimizer + self.buffers


class StepMemory(_Part):
    """The memory of one step, at the two moments that can be its peak.

    In the pass, activations are there and gradients come one by one; in the update, activations are gone
    and all gradients, all weights and all state are there at once.
    """

    largest: MemoryParts = Field(description="each part at its own largest moment")
    in_pass: MemoryParts = Field(description="when most was alive in forward and backward")
    in_update: MemoryParts = Field(description="when most was alive in the optimizer's step")
    allocator_peak: int | None = Field(default=None, description="what CUDA's allocator counted")

    @property
    def at_peak(self) -> MemoryParts:
        """The parts at the moment when their sum was largest."""
        return max(self.in_pass, self.in_update, key=lambda parts: parts.total)

    @property
    def peak(self) -> int:
        """The most that was alive at once, in tensors."""
        return self.at_peak.total


class TimeRatio(_Part):
    """A time over another one: the median of interleaved rounds, and the quartiles."""

    median: float
    low: float
    high: float


class PrecisionCost(_Part):
    """One precision on one machine."""

    precision: str
    memory: StepMemory = Field(description="up to the failure, if there was one")
    seconds: float | None = Field(default=None, description="of a step, the median")
    ratio: TimeRatio | None = Field(default=None, description="its time over the baseline's")
    operations: int = Field(default=0, description="tensor operations in a step")
    casts: int = Field(default=0, description="those among them that only change a dtype")
    flops: int = Field(default=0, description="in matrix products and convolutions of a step")
    matmul_ratio: float | None = Field(
        default=None, description="time of a large matrix product here over that of FP32"
    )
    failure: str = Field(default="", description="what was raised, if the step did not pass")
    out_of_memory: bool = False


class MissedShape(_Part):
    """A dimension that is no multiple of what tensor cores take at once."""

    module: str
    kind: str
    dimension: str
    size: int
    better: int
    share: float = Field(description="of the weights in matrix products and convolutions")


class Saving(_Part):
    """One change that makes a step smaller, with its effect computed from the step's parts."""

    change: str
    how: str
    saves: int = Field(description="bytes at the peak, by this change alone")
    peak: int = Field(description="the peak with this change and all before it")
    same_result: bool = Field(description="whether training computes the same as before")


class Cost(Record):
    """Time and memory of a training step in each precision, and why they are what they are."""

    kind: ClassVar[str] = "cost"

    device: str
    rounds: int
    product_flops: float | None = Field(
        default=None, description="a second, in a large FP32 matrix product here"
    )
    fp32_products: str = Field(description="what FP32 matrix products run in: highest is FP32")
    costs: tuple[PrecisionCost, ...]
    shapes: tuple[MissedShape, ...] = ()
    savings_for: str = Field(default="", description="the precision that the savings refer to")
    savings: tuple[Saving, ...] = ()
    budget: int | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def baseline(self) -> PrecisionCost | None:
        """The first precision that passed; the others are compared with it."""
        return next((cost for cost in self.costs if not cost.failure), None)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than notes."""
        return tuple(found for found in self.findings if found.severity != "note")
