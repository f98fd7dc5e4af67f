"""The results of ``halfguard probe`` and of a traced step: ranges of layers, loss scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, log2, nan
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.formats import FP16
from halfguard.records.base import FloatRecordPart, Record
from halfguard.records.finding import RecordWithFindings
from halfguard.records.plan import ScaleRange


class LayerRange(FloatRecordPart):
    """The largest magnitude of a module's outputs and of their gradients at every step."""

    module: str
    kind: str = Field(description="the module's class")
    forward: tuple[float, ...] = Field(description="of the outputs; one entry per step")
    backward: tuple[float, ...] = Field(description="of the gradients, without the loss scale")
    underflow_now: float = Field(description="share of gradients lost at the current loss scale")
    underflow_best: float = Field(description="the same at the best loss scale")
    scale_low: float | None = Field(description="below it more gradients vanish than allowed")
    scale_high: float | None = Field(description="above it a gradient overflows")

    @property
    def forward_headroom(self) -> float:
        """Doublings until an output overflows, at the worst step."""
        return min((headroom(value) for value in self.forward), default=inf)

    def backward_headroom(self, scale: float) -> float:
        """Return the doublings until a gradient overflows at a loss scale, at the worst step."""
        return min((headroom(value * scale) for value in self.backward), default=inf)

    def least_headroom(self, scale: float) -> float:
        """Return the smaller one of both."""
        return min(self.forward_headroom, self.backward_headroom(scale))

    @property
    def fits(self) -> bool:
        """True if some loss scale fits this layer."""
        if self.scale_low is None or self.scale_high is None:
            return True
        return self.scale_low <= self.scale_high

    @property
    def scales(self) -> str:
        """The scales that fit, as text such as ``2^-5..16``."""
        if self.scale_low is None or self.scale_high is None:
            return "any"
        if not self.fits:
            return "none"
        return f"2^{round(log2(self.scale_low))}..{round(log2(self.scale_high))}"


class ProbeReport(RecordWithFindings):
    """The ranges of all layers over a short run, with findings."""

    kind: ClassVar[str] = "probe"

    precision: str
    steps: int
    scale: float = Field(description="the loss scale that 'current' refers to")
    best_scale: float
    window: ScaleRange | None = Field(
        description="scales at which all layers fit; None if there are none"
    )
    losses: tuple[float, ...]
    layers: tuple[LayerRange, ...] = Field(description="in the order in which they ran")


def headroom(absmax: float, largest: float = FP16.largest) -> float:
    """Return how often a magnitude can double before FP16 overflows, in bits; -inf if it is not finite."""
    if not isfinite(absmax):
        return -inf
    return log2(largest / absmax) if absmax else inf


def module_label(path: str) -> str:
    """Return a module's path as text; the root module's path is empty."""
    return path or "the model itself"


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
        return headroom(self.absmax, largest)


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
