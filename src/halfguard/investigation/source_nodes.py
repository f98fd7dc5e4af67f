"""Find statements, calls and loops in the source of a script, for patches of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.investigation.passes import Place
from halfguard.replaying.source_edits import SourceFile

Loop = ast.For | ast.While


def read_statement(place: Place | None) -> tuple[SourceFile | None, ast.stmt | None]:
    """Return the file of a line and the statement there; None for what cannot be read or is not certain."""
    file = None if place is None else SourceFile.read(place[0])
    return file, None if file is None or place is None else file.statement_at(place[1])


def all_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Return all calls of a tree, outer ones first."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def calls_at(file: SourceFile, line: int) -> list[ast.Call]:
    """Return the calls around a line, outermost first."""
    return [c for c in all_calls(file.tree) if c.lineno <= line <= (c.end_lineno or c.lineno)]


def called_name(call: ast.Call) -> str:
    """Return the last name of the function that is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def owner_of(file: SourceFile, call: ast.Call) -> str:
    """Return the text of what a method is called on."""
    return file.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def has_call(file: SourceFile, owner: str, *names: str) -> bool:
    """Return whether a file calls one of these methods of an owner."""
    called = {f"{owner}.{name}" for name in names}
    return any(file.source(call.func) in called for call in all_calls(file.tree))


def loops_around(scope: ast.AST, line: int) -> list[Loop]:
    """Return the loops of a scope around a line, the outermost first."""
    around = [
        node
        for node in ast.walk(scope)
        if isinstance(node, Loop) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(around, key=lambda node: node.lineno)
