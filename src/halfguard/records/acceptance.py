"""The result of ``halfguard doctor --acceptance``: what was checked on one device, and with which figures.

The record is made to be sent to others. It names the hardware and the versions, and nothing of the user: no
host name, no paths, no data.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from halfguard.records.base import FloatRecordPart, Record

Status = Literal["passed", "failed", "not run"]


class AcceptanceCase(FloatRecordPart):
    """One comparison or measurement of a check."""

    name: str
    status: Status = "passed"
    detail: str = Field(default="", description="why it failed or was not run")
    figures: dict[str, float] = Field(default={}, description="what was measured, by name")

    @classmethod
    def judged(cls, name: str, problem: str, **figures: float) -> Self:
        """Return a case that failed if there is a problem; underscores in names of figures are spaces."""
        status: Status = "failed" if problem else "passed"
        measured = {key.replace("_", " "): value for key, value in figures.items()}
        return cls(name=name, status=status, detail=problem, figures=measured)


class AcceptanceCheck(FloatRecordPart):
    """One property of halfguard on the device, with its cases."""

    name: str
    claim: str = Field(description="the property, as a sentence that is true if the check passed")
    status: Status
    reason: str = Field(
        default="", description="why it failed or was not run, or what was left out"
    )
    cases: tuple[AcceptanceCase, ...] = ()
    seconds: float

    def count(self, status: Status) -> int:
        """Return the number of cases with this status."""
        return sum(case.status == status for case in self.cases)


class AcceptanceRecord(Record):
    """All checks on one device, with the versions of everything that took part."""

    kind: ClassVar[str] = "acceptance"

    date: str
    device: str = Field(description="the device type, as torch names it")
    device_name: str = Field(description="the card or the processor")
    device_count: int = Field(default=1, description="devices of this kind in the machine")
    capability: str = Field(default="", description="compute capability, or AMD's gfx name")
    memory: float | None = Field(default=None, description="GB of the device or of the machine")
    system: str
    driver: str = ""
    versions: dict[str, str] = Field(description="halfguard, Python, torch, CUDA, cuDNN, NCCL")
    size: Literal["full", "small"] = Field(description="small: fewer and shorter runs, for tests")
    checks: tuple[AcceptanceCheck, ...]
    seconds: float

    @property
    def failed(self) -> tuple[AcceptanceCheck, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def passed(self) -> bool:
        """True if no check failed; checks that were not run prove nothing."""
        return not self.failed

    def check(self, name: str) -> AcceptanceCheck:
        """Return a check by its name."""
        return next(check for check in self.checks if check.name == name)
