"""Edits that rules share: insert a statement, remove one, replace an expression.

No edit is made (None) where it would break the layout of the file: two statements on one line, or a
comment inside the replaced text.
"""

from __future__ import annotations

import ast

from halfguard.lint.match import Edit, Fix, FixKind, Span
from halfguard.lint.python_file import PythonFile


def make_fix(kind: FixKind, *edits: Edit | None, imports: tuple[str, ...] = ()) -> Fix | None:
    """Return a fix, or None if one of its edits was refused."""
    possible = tuple(edit for edit in edits if edit is not None)
    return Fix(kind, possible, imports) if len(possible) == len(edits) else None


def insert_before(file: PythonFile, statement: ast.stmt, text: str) -> Edit | None:
    """Insert a statement on the line above, with the same indentation."""
    if not _has_own_lines(file, statement):
        return None
    indent = file.source.indent(statement.lineno)
    return Edit(Span.before(statement), f"{text}{file.source.newline}{indent}")


def insert_after(file: PythonFile, statement: ast.stmt, text: str) -> Edit | None:
    """Insert a statement on the line below, with the same indentation."""
    if not _has_own_lines(file, statement):
        return None
    last = statement.end_lineno or statement.lineno
    indent, newline = file.source.indent(statement.lineno), file.source.newline
    end = len(file.source.lines[last - 1].rstrip(b"\r\n"))
    return Edit(Span(last, end, last, end), f"{newline}{indent}{text}")


def remove(file: PythonFile, statement: ast.stmt) -> Edit | None:
    """Remove a statement and its lines, unless it is the only statement of its block."""
    parent = file.parents.get(statement)
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    is_only = any(isinstance(b, list) and b == [statement] for b in blocks)
    last = statement.end_lineno or statement.lineno
    if is_only or not _has_own_lines(file, statement) or last >= len(file.source.lines):
        return None
    return Edit(Span(statement.lineno, 0, last + 1, 0), "")


def replace(file: PythonFile, node: ast.expr | ast.stmt, text: str) -> Edit | None:
    """Replace an expression, unless a comment inside it would be lost."""
    if "#" in file.text(node) and node.lineno != node.end_lineno:
        return None
    return Edit(Span.of(node), text)


def _has_own_lines(file: PythonFile, statement: ast.stmt) -> bool:
    """Return whether no other statement shares a line with this one; a comment may."""
    before = file.source.lines[statement.lineno - 1][: statement.col_offset]
    last = statement.end_lineno or statement.lineno
    after = file.source.lines[last - 1][statement.end_col_offset or 0 :].strip()
    return not before.strip() and (not after or after.startswith(b"#"))


def is_name_or_attribute(node: ast.AST | None) -> bool:
    """Return whether an expression is cheap to repeat in a fix: only names and attributes."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
