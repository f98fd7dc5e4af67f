"""The cost of a precision: time and memory of one training step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import Field

from halfguard.records.base import RecordPart
from halfguard.records.finding import RecordWithFindings


class MemoryParts(RecordPart):
    """Bytes by purpose; each storage is counted once."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = Field(default=0, description="its state, and master weights if it has them")
    activations: int = Field(
        default=0, description="saved by the forward pass for the backward pass"
    )
    weight_copies: int = Field(default=0, description="weights that autocast cast to 16-bit")
    buffers: int = 0
    other: int = Field(default=0, description="the batch, and temporary tensors of operations")

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, name) for name in type(self).model_fields)


class StepMemory(RecordPart):
    """The memory of one step, at the two points that can be its peak.

    In the forward and backward pass, activations are held and gradients arrive one by one. In the update,
    activations are freed, and all gradients, weights and optimizer state are held at once.
    """

    largest: MemoryParts = Field(description="each part at its own maximum")
    in_pass: MemoryParts = Field(description="at the peak of forward and backward")
    in_update: MemoryParts = Field(description="at the peak of the optimizer's step")
    allocator_peak: int | None = Field(default=None, description="what CUDA's allocator counted")

    @property
    def at_peak(self) -> MemoryParts:
        """The parts when their sum was largest."""
        return max(self.in_pass, self.in_update, key=lambda parts: parts.total)

    @property
    def peak(self) -> int:
        """The largest number of bytes in tensors at the same time."""
        return self.at_peak.total


class Spread(RecordPart):
    """A median with its quartiles, as of the ratio of two times over interleaved rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of at least one value; a single value has none."""
        if len(values) == 1:
            return cls(median=values[0], low=values[0], high=values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, low=low, high=high)


class PrecisionCost(RecordPart):
    """The cost of one precision on one machine."""

    precision: str
    memory: StepMemory = Field(description="up to the failure, if there was one")
    seconds: float | None = Field(default=None, description="median time of a step")
    ratio: Spread | None = Field(default=None, description="its time over the baseline's")
    operations: int = Field(default=0, description="tensor operations in a step")
    casts: int = Field(default=0, description="operations that only change a dtype")
    flops: int = Field(default=0, description="in matrix products and convolutions of a step")
    matmul_ratio: float | None = Field(
        default=None, description="time of a large matrix product over that of FP32"
    )
    failure: str = Field(default="", description="the error, if the step failed")
    out_of_memory: bool = False


class Cost(RecordWithFindings):
    """Time and memory of a training step in each precision, with explanations."""

    kind: ClassVar[str] = "cost"

    device: str
    rounds: int
    product_flops: float | None = Field(
        default=None, description="FLOP per second in a large FP32 matrix product"
    )
    fp32_products: str = Field(description="torch's float32_matmul_precision: highest is FP32")
    costs: tuple[PrecisionCost, ...]
    budget: int | None = None

    @property
    def baseline(self) -> PrecisionCost | None:
        """The first precision that ran; the others are compared with it."""
        return next((cost for cost in self.costs if not cost.failure), None)
