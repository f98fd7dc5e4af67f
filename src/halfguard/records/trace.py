"""What a traced step looked like: one entry for every module's outputs and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, log2, nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import Record

Place = Literal["output", "grad_output", "param_grad"]


@dataclass(frozen=True, slots=True)
class LayerStats:
    """One tensor of one module in one step; several calls of the module are merged into one."""

    module: str  # path, as in named_modules(); empty for the model itself
    place: Place
    name: str  # where in a nested output ("1", "logits"), or the parameter's own name
    dtype: str  # such as "float16"
    numel: int  # values of all calls together
    calls: int
    low: float  # the smallest and the largest value; NaN if one value is
    high: float
    bins: Mapping[int, int] = field(default_factory=dict)
    """Counts by the columns of ``halfguard.numerics.histogram``; empty unless detail is "range"."""

    @property
    def absmax(self) -> float:
        """The largest magnitude: infinite or NaN as soon as one value is."""
        return nan if isnan(self.low) else max(-self.low, self.high)

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return isfinite(self.absmax)

    def headroom(self, largest: float = 65504.0) -> float:
        """How many doublings lie between the largest magnitude and ``largest``, in bits."""
        if not self.finite:
            return -inf
        return log2(largest / self.absmax) if self.absmax else inf


class TraceStep(Record):
    """All layers at one step."""

    kind: ClassVar[str] = "trace"

    step: int = Field(ge=0, description="steps of the tracer before this one")
    layers: tuple[LayerStats, ...]

    def at(self, place: Place) -> Iterator[LayerStats]:
        """The entries of one place, in the order in which they were computed."""
        return (layer for layer in self.layers if layer.place == place)

    def of(self, module: str) -> Iterator[LayerStats]:
        """The entries of one module."""
        return (layer for layer in self.layers if layer.module == module)

    @property
    def nonfinite(self) -> tuple[LayerStats, ...]:
        """What is not finite, first computed first."""
        return tuple(layer for layer in self.layers if not layer.finite)
