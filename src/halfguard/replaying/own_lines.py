"""The lines of a source file that belong to one statement, and those that an edit must leave alone.

A compound statement owns its header, not its body. If two statements own a line (``a = f(x); b = g(a)``, or
``if x: y = f(x)``), a line alone does not tell which one is meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
Scope = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_PARTS = (ast.ExceptHandler, ast.match_case)


def own_lines(statement: ast.stmt) -> set[int]:
    """Return the lines of a statement without those of its body; a line that both share is one of them."""
    body, head = list[ast.stmt](), list[ast.AST]()
    for child in ast.iter_child_nodes(statement):
        parts = ast.iter_child_nodes(child) if isinstance(child, _PARTS) else (child,)
        for part in parts:
            if isinstance(part, ast.stmt):
                body.append(part)
            else:
                head.append(part)
    lines = _lines(statement)
    for part in body:
        lines -= _lines(part)
    for node in head:
        lines |= _lines(node)
    return lines | {statement.lineno}


def _lines(node: ast.AST) -> set[int]:
    """Return all lines of a node, its decorators included."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:  # such as the arguments of a function: their parts have lines
        return set().union(*map(_lines, ast.iter_child_nodes(node)))
    decorators = getattr(node, "decorator_list", ())
    return set(range(min([first, *(one.lineno for one in decorators)]), last + 1))


def text_lines(statement: ast.stmt) -> set[int]:
    """Return the lines that may begin inside a string: to indent them would change it."""
    lines: set[int] = set()
    for node in ast.walk(statement):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if is_text or type(node).__name__ in ("JoinedStr", "TemplateStr"):
            lines |= _lines(node) - {getattr(node, "lineno", 0)}
    return lines


def inner_scopes(statement: ast.stmt) -> list[Scope]:
    """Return lambdas and comprehensions of a statement, whose names are not those around them."""
    return [node for node in ast.walk(statement) if isinstance(node, Scope)]


def is_shadowed(statement: ast.stmt) -> bool:
    """Return whether a lambda or a comprehension binds a name that the statement also uses outside of it."""
    for scope in inner_scopes(statement):
        inside = set(map(id, ast.walk(scope)))
        outside = (node for node in ast.walk(statement) if id(node) not in inside)
        used = {node.id for node in outside if isinstance(node, ast.Name)}
        if used & set(_bound(scope)):
            return True
    return False


def _bound(scope: Scope) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
