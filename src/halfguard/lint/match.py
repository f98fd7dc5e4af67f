"""What a rule declares, and what it returns: its metadata, and matches, each with an optional fix.

Matches are plain data (positions and text), so that they can be sent between processes, and one serves the
terminal, an editor, SARIF and ``--fix``.

A ``Diagnostic`` is plain data too: pydantic, which records need, takes longer to import than most files to
check.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfguard.catalogue import Severity

if TYPE_CHECKING:
    from halfguard.records import Finding

FixKind = Literal["safe", "unsafe"]


@dataclass(frozen=True)
class Meta:
    """When a rule is run; the catalogue has the rest."""

    # A file must contain one of these texts to be checked, so most files of a large tree are never parsed.
    contains: tuple[str, ...]
    # If this is given, it must contain one of these as well.
    also_contains: tuple[str, ...] = ()
    # A regular expression that must match as well; it is searched last, because it is slower.
    pattern: str = ""
    # The rule is reported once per file, with the number and the fixes of all its matches.
    once: bool = False
    # The rule is about the range of float16, and is not run if the project never uses float16.
    needs_half: bool = False


@dataclass(frozen=True)
class Span:
    """A range of source: lines from 1, columns in UTF-8 bytes from 0, as in ``ast``."""

    line: int
    column: int
    end_line: int
    end_column: int

    @property
    def begin(self) -> tuple[int, int]:
        return self.line, self.column

    @property
    def end(self) -> tuple[int, int]:
        return self.end_line, self.end_column

    @classmethod
    def of(cls, node: ast.expr | ast.stmt | ast.excepthandler | ast.keyword) -> Span:
        """Return the range of a syntax node."""
        return cls(
            node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    @classmethod
    def before(cls, node: ast.expr | ast.stmt) -> Span:
        """Return the empty range at the beginning of a node."""
        return cls(node.lineno, node.col_offset, node.lineno, node.col_offset)

    @classmethod
    def after(cls, node: ast.expr) -> Span:
        """Return the empty range at the end of a node."""
        line, column = node.end_lineno or 0, node.end_col_offset or 0
        return cls(line, column, line, column)


@dataclass(frozen=True)
class Edit:
    """A range of source and the text that replaces it."""

    span: Span
    text: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together, and the modules that their text imports."""

    kind: FixKind
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Match:
    """One place at which a rule applies."""

    span: Span
    message: str
    fix: Fix | None = None


def match_at(node: ast.expr | ast.stmt, message: str, fix: Fix | None = None) -> Match:
    """Return a match that covers a syntax node."""
    return Match(Span.of(node), message, fix)


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

    @property
    def line(self) -> int:
        return self.span.line

    @property
    def place(self) -> str:
        """The location as ``path:line:column``."""
        return f"{self.path}:{self.line}:{self.column}"

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
