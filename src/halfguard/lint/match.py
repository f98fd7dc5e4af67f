"""What a rule reports: a match at a place, with an optional fix.

One idea: everything that leaves a rule is plain data (positions and text), so that it crosses process
borders and the same match serves the terminal, an editor, SARIF and ``--fix``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

FixKind = Literal["safe", "unsafe"]


@dataclass(frozen=True)
class Span:
    """A range of source: lines count from 1, columns are UTF-8 bytes from 0, as in ``ast``."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def of(cls, node: ast.expr | ast.stmt | ast.excepthandler | ast.keyword) -> Span:
        """The range of a syntax node."""
        return cls(
            node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    @classmethod
    def before(cls, node: ast.expr | ast.stmt) -> Span:
        """The empty range at which a node begins."""
        return cls(node.lineno, node.col_offset, node.lineno, node.col_offset)


@dataclass(frozen=True)
class Edit:
    """Replace a range by a text."""

    span: Span
    text: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together, and the modules that their text needs imported."""

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
    """A match that covers a syntax node."""
    return Match(Span.of(node), message, fix)
