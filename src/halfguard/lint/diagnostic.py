"""A finding of lint with its range, its source line and its fix.

It is plain data: pydantic, which records need, takes longer to import than most files to check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfguard.lint.match import Fix, Severity, Span

if TYPE_CHECKING:
    from halfguard.records import Finding


@dataclass(frozen=True)
class Diagnostic:
    """One finding; lines and columns count characters from 1, as editors do."""

    code: str
    message: str
    severity: Severity
    path: str
    column: int
    end_column: int  # on the first line
    subject: str
    cure: str
    span: Span
    snippet: str
    fix: Fix | None
    cell: int | None = None  # of a notebook, from 1; lines are then those of the cell

    @property
    def line(self) -> int:
        return self.span.line

    @property
    def place(self) -> str:
        """The location as ``path:line:column``, or ``path:cell 3:line:column`` in a notebook."""
        cell = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{cell}{self.line}:{self.column}"

    @property
    def fix_text(self) -> str | None:
        """The text that the fix inserts, or None without a fix."""
        return "\n".join(edit.text.strip() for edit in self.fix.edits) if self.fix else None

    @property
    def finding(self) -> Finding:
        """This finding as a record."""
        from halfguard.records import Finding  # noqa: PLC0415

        return Finding(
            code=self.code,
            message=self.message,
            severity=self.severity,
            path=self.path,
            line=self.line,
            column=self.column,
            subject=self.subject,
            cure=self.cure,
            fix=self.fix_text,
        )
