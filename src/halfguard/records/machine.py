"""What ``halfguard doctor`` knows about a machine: what was read, what it can do, and what to choose.

``Machine`` holds facts and no opinion; ``Hardware`` is what a table or a flag says about one device. Both
are plain data, so that the judgement of a machine is tested on records of machines that are elsewhere.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.base import Record
from halfguard.records.finding import Finding

Precision = Literal["fp32", "fp16-mixed", "bf16-mixed"]
Support = Literal["native", "slow", "emulated", "faulty", "unknown"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Device(_Part):
    """An accelerator, as torch names it."""

    kind: Literal["cuda", "rocm", "mps", "xpu"]
    index: int = 0
    name: str
    target: str | None = Field(default=None, description="compute capability, or AMD's gfx name")
    memory: float | None = Field(default=None, description="GB")

    @property
    def torch_type(self) -> str:
        """What ``torch.device`` calls it: ROCm goes by the name of CUDA."""
        return "cuda" if self.kind == "rocm" else self.kind


class Processor(_Part):
    """The CPU; of its features only those that matter for 16 bits."""

    name: str
    cores: int
    memory: float | None = Field(default=None, description="GB")
    features: tuple[str, ...] = ()


class TorchBuild(_Part):
    """The torch that is installed here."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = Field(default=(), description="GPUs it has kernels for")
    default_scaler: bool = Field(description="whether GradScaler() without a device stays on")


class Machine(Record):
    """Facts about a machine, read without judging them."""

    kind: ClassVar[str] = "machine"

    system: str
    processor: Processor
    driver: str | None = None
    torch: TorchBuild | None = None
    devices: tuple[Device, ...] = ()


class Hardware(_Part):
    """What one device can do in 16 bits, and the document that says so."""

    name: str
    kind: Literal["gpu", "processor"] = "gpu"
    vendor: str
    generation: str
    fp16: Support
    bf16: Support
    fp16_rate: float | None = Field(default=None, description="FP16 over FP32 outside matrix units")
    bf16_rate: float = Field(default=1, description="BF16 over FP16 in matrix units")
    matrix: bool | None = Field(default=None, description="matrix units for 16 bits")
    tf32: bool = False
    fp32_tflops: float | None = None
    fp16_tflops: float | None = None
    matrix_tflops: float | None = Field(default=None, description="dense, summed in FP32")
    memory: float | None = Field(default=None, description="GB")
    bandwidth: float | None = Field(default=None, description="GB/s")
    source: str


class Ability(_Part):
    """One precision on one device: what really happens, and its speed over FP32."""

    precision: Precision
    how: str
    speed: float | None = Field(default=None, description="matrix products, over FP32")
    basis: Literal["measured", "published"] | None = None


class Choice(_Part):
    """The precision to take, and why."""

    precision: Precision
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class ParityRow(_Part):
    """One operation in one format against float64, in units of what rounding may do."""

    operation: str
    precision: str
    size: str
    error: float = Field(description="largest error over its bound: at most 1 is right")
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether every element is finite and within its bound; NaN is not."""
        return self.error <= 1


class MachineReport(Record):
    """The whole answer about one device; ``machine`` is None for a card named by hand."""

    kind: ClassVar[str] = "machine-report"

    machine: Machine | None = None
    hardware: Hardware
    abilities: tuple[Ability, ...]
    choice: Choice
    parity: tuple[ParityRow, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than notes."""
        return tuple(found for found in self.findings if found.severity != "note")
