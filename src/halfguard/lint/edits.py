"""The edits that rules share: put a statement beside another, take one away, replace an expression.

An edit is refused (None) where it could not keep the file's shape: two statements on one line, or a
comment inside the replaced text.
"""

from __future__ import annotations

import ast

from halfguard.lint.match import Edit, Span
from halfguard.lint.model import Model


def insert_before(module: Model, statement: ast.stmt, text: str) -> Edit | None:
    """Put a statement on the line above, at the same depth."""
    if not module.stands_alone(statement):
        return None
    indent = module.source.indent(statement.lineno)
    return Edit(Span.before(statement), f"{text}{module.source.newline}{indent}")


def insert_after(module: Model, statement: ast.stmt, text: str) -> Edit | None:
    """Put a statement on the line below, at the same depth."""
    if not module.stands_alone(statement):
        return None
    last = statement.end_lineno or statement.lineno
    indent, newline = module.source.indent(statement.lineno), module.source.newline
    end = len(module.source.lines[last - 1].rstrip(b"\r\n"))
    return Edit(Span(last, end, last, end), f"{newline}{indent}{text}")


def remove(module: Model, statement: ast.stmt) -> Edit | None:
    """Take a statement away with its line, unless it is all that a block holds."""
    parent = module.parents.get(statement)
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    alone = any(isinstance(b, list) and b == [statement] for b in blocks)
    last = statement.end_lineno or statement.lineno
    if alone or not module.stands_alone(statement) or last >= len(module.source.lines):
        return None
    return Edit(Span(statement.lineno, 0, last + 1, 0), "")


def replace(module: Model, node: ast.expr | ast.stmt, text: str) -> Edit | None:
    """Replace an expression, unless a comment inside it would be lost."""
    if "#" in module.text(node) and node.lineno != node.end_lineno:
        return None
    return Edit(Span.of(node), text)


def is_simple(node: ast.AST | None) -> bool:
    """Whether an expression can be written twice: names and attributes cost nothing to repeat."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
