"""The result of ``halfguard doctor`` for a machine: its facts, its abilities, and the precision to choose.

``Machine`` holds facts without judgement; ``Hardware`` describes one device, from a table or a flag. Both
are plain data, so tests can judge records of machines that are not present.
"""

from __future__ import annotations

from importlib import metadata
from typing import ClassVar, Literal

from pydantic import Field

from halfguard.precision_names import MixedPrecisionName
from halfguard.records.base import FloatRecordPart, Record
from halfguard.records.finding import RecordWithFindings

Support = Literal["native", "slow", "emulated", "faulty", "unknown"]


class Device(FloatRecordPart):
    """An accelerator, as torch names it."""

    kind: Literal["cuda", "rocm", "mps", "xpu"]
    index: int = 0
    name: str
    target: str | None = Field(default=None, description="compute capability, or AMD's gfx name")
    memory: float | None = Field(default=None, description="GB")

    @property
    def torch_type(self) -> str:
        """The type for ``torch.device``; torch calls ROCm devices "cuda"."""
        return "cuda" if self.kind == "rocm" else self.kind


class Processor(FloatRecordPart):
    """The CPU, with the features that matter for 16 bits."""

    name: str
    cores: int
    memory: float | None = Field(default=None, description="GB")
    features: tuple[str, ...] = ()


class TorchBuild(FloatRecordPart):
    """The installed build of torch."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = Field(default=(), description="GPUs it has kernels for")
    default_scaler: bool = Field(description="True if GradScaler() without a device stays enabled")


class Machine(Record):
    """Facts about a machine, without judgement."""

    kind: ClassVar[str] = "machine"

    system: str
    processor: Processor
    driver: str | None = None
    torch: TorchBuild | None = None
    devices: tuple[Device, ...] = ()


class Hardware(FloatRecordPart):
    """The abilities of one device in 16 bits, and the document that states them."""

    name: str
    kind: Literal["gpu", "processor"] = "gpu"
    vendor: str
    generation: str
    fp16: Support
    bf16: Support
    matrix: bool | None = Field(default=None, description="16-bit matrix units")
    tf32: bool = False
    memory: float | None = Field(default=None, description="GB")
    source: str


class Ability(FloatRecordPart):
    """The support for one precision on one device, and its speed if it was measured."""

    precision: MixedPrecisionName
    how: str
    speed: float | None = Field(default=None, description="matrix products, over FP32")


class Choice(FloatRecordPart):
    """The recommended precision, with reasons."""

    precision: MixedPrecisionName
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class ParityRow(FloatRecordPart):
    """One operation in one format compared with float64, in units of the allowed rounding error."""

    operation: str
    precision: str
    size: str
    error: float = Field(description="largest error over its bound: at most 1 is correct")
    detail: str = ""

    @property
    def passed(self) -> bool:
        """True if every element is within its bound; False for NaN."""
        return self.error <= 1


class MachineReport(RecordWithFindings):
    """The report on one device; ``machine`` is None for a card given by name."""

    kind: ClassVar[str] = "machine-report"

    machine: Machine | None = None
    hardware: Hardware
    abilities: tuple[Ability, ...]
    choice: Choice
    parity: tuple[ParityRow, ...] = ()


def installed_version(package: str) -> str:
    """Return the version of an installed package; an empty string if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
