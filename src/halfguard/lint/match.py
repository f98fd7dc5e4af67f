"""What a rule finds: matches, each with an optional fix, and the findings made of them.

All are plain data: pydantic, which records need, takes longer to import than most files to check.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from halfguard.catalogue import Severity

FixKind = Literal["safe", "unsafe"]
Edit = tuple[int, int, str]  # the first byte, the one after the last, and what replaces them


@dataclass(frozen=True)
class Span:
    """A range of source: lines from 1, columns in UTF-8 bytes from 0, as in ``ast``."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def of(cls, node: ast.expr | ast.stmt) -> Span:
        """Return the range of a syntax node."""
        last = node.end_lineno or node.lineno
        return cls(node.lineno, node.col_offset, last, node.end_col_offset or 0)


@dataclass(frozen=True)
class Fix:
    """Edits that belong together."""

    kind: FixKind
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Match:
    """One place at which a rule applies."""

    span: Span
    message: str
    fix: Fix | None = None
    condition: str = ""


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
    condition: str = ""  # what it depends on that the project does not show

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
        return "\n".join(text.strip() for _, _, text in self.fix.edits) if self.fix else None
