"""The operation that keeps making bad numbers: its place in the user's code, and in the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from halfguard.records import Culprit


@dataclass(frozen=True, slots=True)
class Producer:
    """The place of a fault; two faults at one place have the same ``key``."""

    module: str | None  # path in the model, empty for the model itself; None outside the model
    file: str
    line: int
    code: str
    op: str
    phase: str
    dtype: str
    swallowed: str = ""  # "overflow" or "underflow", if loss and gradients were finite
    compiled: bool = False

    @classmethod
    def of(cls, culprit: Culprit | None) -> Self | None:
        """Return the producer of a culprit; None for bad weights or data, or an infinity that is meant."""
        if culprit is None or culprit.kind != "op" or culprit.intended:
            return None
        return cls(
            culprit.module,
            culprit.file,
            culprit.line,
            culprit.code,
            culprit.op,
            culprit.phase,
            culprit.dtype,
            culprit.swallowed,
            culprit.compiled,
        )

    @classmethod
    def load(cls, values: dict[str, Any]) -> Self:
        """Return the producer of ``to_dict``."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for other ranks."""
        return asdict(self)

    @property
    def key(self) -> str:
        """The place, without what may differ from batch to batch."""
        return f"{self.module} {self.file}:{self.line} {self.phase}"

    @property
    def place(self) -> str:
        """The user's line as ``file:line``."""
        return f"{self.file}:{self.line}" if self.file else "unknown place"

    def __str__(self) -> str:
        code = f" ({self.code})" if self.code else ""
        if self.module is None:
            inside = "outside every module"
        else:
            inside = f"in {self.module}" if self.module else "in the model's own forward"
        return f"{self.op} at {self.place}{code}, {inside}"
