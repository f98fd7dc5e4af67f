"""The statistics of a traced step: one entry for each module output and gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, log2, nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.formats import FP16
from halfguard.records.base import Record

TensorPlace = Literal["output", "grad_output", "param_grad"]


@dataclass(frozen=True, slots=True)
class LayerStats:
    """One tensor of one module in one step; several calls of the module are merged."""

    module: str  # path, as in named_modules(); empty for the model itself
    place: TensorPlace
    name: str  # path in a nested output ("1", "logits"), or the parameter's own name
    dtype: str  # such as "float16"
    numel: int  # of all calls together
    calls: int
    low: float  # the smallest and the largest value; NaN if any value is
    high: float
    bins: Mapping[int, int] = field(default_factory=dict)
    """Counts by column of ``halfguard.numerics.histogram``; empty unless detail is "range"."""

    @property
    def absmax(self) -> float:
        """The largest magnitude; infinite or NaN if any value is."""
        return nan if isnan(self.low) else max(-self.low, self.high)

    @property
    def finite(self) -> bool:
        """True if all values are finite."""
        return isfinite(self.absmax)

    def headroom(self, largest: float = FP16.largest) -> float:
        """Return how often the largest magnitude can double before ``largest``, in bits."""
        if not self.finite:
            return -inf
        return log2(largest / self.absmax) if self.absmax else inf


class TraceStep(Record):
    """The statistics of all layers at one step."""

    kind: ClassVar[str] = "trace"

    step: int = Field(ge=0, description="steps of the tracer before this one")
    layers: tuple[LayerStats, ...]

    def at(self, place: TensorPlace) -> Iterator[LayerStats]:
        """Yield the entries of one place, in the order in which they were computed."""
        return (layer for layer in self.layers if layer.place == place)

    def of(self, module: str) -> Iterator[LayerStats]:
        """Yield the entries of one module."""
        return (layer for layer in self.layers if layer.module == module)

    @property
    def nonfinite(self) -> tuple[LayerStats, ...]:
        """The entries with non-finite values, in the order in which they were computed."""
        return tuple(layer for layer in self.layers if not layer.finite)
