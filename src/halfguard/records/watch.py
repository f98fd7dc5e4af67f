"""The row of a watched step: the headroom of every layer, lost updates, forecasts and new warnings.

A journal has one such row for each sampled step. Readers that do not know the kind leave it out.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record, RecordPart
from halfguard.records.ranges import module_label

WatchWarningKind = Literal["swallowed", "overflow_ahead", "updates_lost"]


class WatchedLayer(FloatRecordPart):
    """The range of one module at one step, over the half operations that it ran itself."""

    module: str | None = Field(description="path; empty: the model itself; None: outside, a loss")
    forward: float = Field(default=inf, description="bits until an output overflows")
    backward: float = Field(default=inf, description="the same for gradients, at this loss scale")
    vanishing: float = Field(default=0.0, description="estimated share of gradients that became 0")
    infinite: int = Field(default=0, description="operations whose result overflowed")

    @property
    def label(self) -> str:
        """The module's path as text."""
        return "outside the model" if self.module is None else module_label(self.module)


class LayerUpdates(FloatRecordPart):
    """The updates of one module's 16-bit weights: the share that rounds to nothing."""

    module: str
    lost: float = Field(description="share of updates that left the stored weight unchanged")
    frozen_at: int | None = Field(default=None, description="step at which 90% will be lost")


class OverflowAhead(FloatRecordPart):
    """The step at which a line will overflow if its trend continues."""

    module: str | None
    op: str
    file: str
    line: int
    step: int = Field(description="expected step of the overflow")
    earliest: int
    latest: float
    doubling: float = Field(description="steps in which the largest magnitude doubles")


class WatchWarning(RecordPart):
    """A warning of the watch. Each is given once per process."""

    warning: WatchWarningKind
    module: str | None
    place: str = Field(default="", description="the line as file:line, if it is one line")
    text: str


class WatchRow(Record):
    """One sampled step."""

    kind: ClassVar[str] = "watch"

    step: int = Field(ge=0)
    scale: float
    layers: tuple[WatchedLayer, ...] = Field(
        default=(),
        description=(
            "in the order in which they ran; if there are many, those with the least headroom"
        ),
    )
    updates: tuple[LayerUpdates, ...] = Field(default=(), description="of 16-bit weights")
    forecasts: tuple[OverflowAhead, ...] = ()
    warnings: tuple[WatchWarning, ...] = ()

    @property
    def forward(self) -> float:
        """The least headroom of all outputs, in bits."""
        return min((layer.forward for layer in self.layers), default=inf)

    @property
    def backward(self) -> float:
        """The least headroom of all gradients, in bits."""
        return min((layer.backward for layer in self.layers), default=inf)

    @property
    def vanishing(self) -> float:
        """The largest share of vanished gradients of a layer."""
        return max((layer.vanishing for layer in self.layers), default=0.0)

    @property
    def infinite(self) -> int:
        """Operations with a result beyond the range of half."""
        return sum(layer.infinite for layer in self.layers)

    @property
    def lost(self) -> float:
        """The largest share of lost updates of a layer."""
        return max((one.lost for one in self.updates), default=0.0)
