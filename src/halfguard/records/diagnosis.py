"""The result of ``halfguard.doctor``: the effective precision of a model, and problems in its setup."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from halfguard.records.base import RecordPart
from halfguard.records.finding import Finding, RecordWithFindings


class EffectivePrecision(RecordPart):
    """The requested and the measured precision of the forward pass."""

    asked: str | None = Field(description="None if it is unknown")
    got: str = Field(description="such as fp16-mixed; 'unknown' if no matrix product was seen")
    why: str = Field(default="", description="why the two differ, or why one is unknown")
    evidence: tuple[str, ...] = Field(default=(), description="observations in the forward pass")

    @property
    def as_asked(self) -> bool:
        """True if the forward pass ran in the requested precision."""
        return self.asked is None or self.got in (self.asked, "unknown")

    def __str__(self) -> str:
        asked = f"requested {self.asked}, " if self.asked is not None else ""
        facts = [*self.evidence, *([self.why] if self.why and self.as_asked else [])]
        return "\n".join([f"{asked}got {self.got}", *(f"  {fact}" for fact in facts)])


class Diagnosis(RecordWithFindings):
    """Findings on a model and its setup; ``effective`` is None if no forward pass was run."""

    kind: ClassVar[str] = "diagnosis"

    framework: str = "plain"
    effective: EffectivePrecision | None = None

    @property
    def ok(self) -> bool:
        """True if there are no errors or warnings."""
        return not self.problems

    def __str__(self) -> str:
        parts = [] if self.effective is None else [str(self.effective)]
        parts += [_describe(found) for found in self.findings] or ["nothing found"]
        return "\n".join(parts)


def _describe(finding: Finding) -> str:
    lines = [f"{finding.code} {finding.severity}: {finding.message}"]
    if finding.why:
        lines.append(f"  why: {finding.why}")
    if finding.cure:
        lines.append("  fix: " + finding.cure.replace("\n", "\n       "))
    return "\n".join(lines)
