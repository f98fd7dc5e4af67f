"""What ``halfguard.doctor`` answers about a model and its training setup: what it will really do."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.base import Record
from halfguard.records.finding import Finding


class Effective(BaseModel):
    """The precision of the forward pass: what was asked for, and what was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: str | None = Field(description="None if it is not known")
    got: str = Field(description="such as fp16-mixed; 'unknown' if no matrix product was seen")
    why: str = Field(default="", description="why the two differ, or why one is not known")
    evidence: tuple[str, ...] = Field(default=(), description="what was seen in the forward pass")

    @property
    def as_asked(self) -> bool:
        """Whether the forward pass ran in the precision that was asked for."""
        return self.asked is None or self.got in (self.asked, "unknown")

    def __str__(self) -> str:
        asked = f"asked for {self.asked}, " if self.asked is not None else ""
        facts = [*self.evidence, *([self.why] if self.why and self.as_asked else [])]
        return "\n".join([f"{asked}got {self.got}", *(f"  {fact}" for fact in facts)])


class Diagnosis(Record):
    """The findings on a model and its setup; ``effective`` is None where no forward pass was run."""

    kind: ClassVar[str] = "diagnosis"

    framework: str = "plain"
    effective: Effective | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than notes."""
        return tuple(found for found in self.findings if found.severity != "note")

    @property
    def ok(self) -> bool:
        """Whether there is nothing to mend."""
        return not self.problems

    def __str__(self) -> str:
        parts = [] if self.effective is None else [str(self.effective)]
        parts += [_described(found) for found in self.findings] or ["nothing found"]
        return "\n".join(parts)


def _described(finding: Finding) -> str:
    lines = [f"{finding.code} {finding.severity}: {finding.message}"]
    if finding.why:
        lines.append(f"  why: {finding.why}")
    if finding.cure:
        lines.append("  cure: " + finding.cure.replace("\n", "\n        "))
    return "\n".join(lines)
