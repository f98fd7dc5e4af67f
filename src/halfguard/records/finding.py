"""A problem found by lint, doctor or probe: what, where, why, and the cure."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from halfguard.catalogue import Severity
from halfguard.records.base import Record


class Finding(Record):
    """A problem with its place and its cure; the place is a file, or a name such as a module path."""

    kind: ClassVar[str] = "finding"

    code: str = Field(pattern=r"^[A-Z]{2}\d{3}$", description="stable identifier, such as HG101")
    message: str = Field(min_length=1, description="what is wrong, in one sentence")
    severity: Severity = "warning"
    path: str | None = Field(default=None, description="file, as the user named it")
    line: int | None = Field(default=None, ge=1)
    column: int | None = Field(default=None, ge=1)
    subject: str | None = Field(default=None, description="module, parameter or config key")
    why: str = ""
    cure: str = ""
    fix: str | None = Field(default=None, description="replacement text, where one is known")

    @property
    def place(self) -> str:
        """The location as ``path:line:column``, or the subject."""
        if self.path is None:
            return self.subject or ""
        return ":".join(str(part) for part in (self.path, self.line, self.column) if part)


class RecordWithFindings(Record):
    """A record of what was examined, with everything that was found."""

    findings: tuple[Finding, ...] = ()

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are more than notes."""
        return tuple(found for found in self.findings if found.severity != "note")
