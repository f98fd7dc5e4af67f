"""Code that nothing in a project runs: what nobody uses, and what no command or setting turns on."""

from __future__ import annotations

import ast
from pathlib import Path

from halfguard.lint.expressions import argument, boolean, called_name, name_of, string
from halfguard.lint.match import Span
from halfguard.lint.python_file import PythonFile
from halfguard.lint.switches import is_switch

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def never_runs(file: PythonFile, span: Span) -> bool:
    """Return whether a place is in a function or class that nobody uses, or behind a switch that is off."""
    if file.project.lone:
        return False
    around = [node for node in file.root.body if _holds(node, span)]
    if any(isinstance(n, _Definition) and not _is_used(file, n) for n in around):
        return True
    branches = [node for node in file.nodes(ast.If) if _holds(node, span)]
    bodies = [n for n in branches if any(_holds(s, span) for s in n.body)]
    tests = [
        node.test
        for node in bodies
        if not isinstance(node.test, ast.Name) or is_switch(node.test.id)
    ]
    return any(is_never(file, file.assigned_value(test)) for test in tests)


def _holds(node: ast.stmt, span: Span) -> bool:
    return node.lineno <= span.line <= (node.end_lineno or node.lineno)


def _is_used(file: PythonFile, node: _Definition) -> bool:
    """Return whether other files, or code of this file that is used itself, name a definition."""
    seen, waiting = {node.name}, [node]
    while waiting:
        one = waiting.pop()
        if one.decorator_list:  # which may register it
            return True
        for statement, words in file.words_of_statements:
            if statement is one or one.name not in words:
                continue
            if not isinstance(statement, _Definition):
                is_import = isinstance(statement, ast.Import | ast.ImportFrom)
                if not is_import and not _is_list(statement):
                    return True
            elif statement.name not in seen:
                seen.add(statement.name)
                waiting.append(statement)
    path = Path(file.path).absolute()
    return any(file.project.imports.is_used(path, name) for name in seen)


def _is_list(statement: ast.stmt) -> bool:
    """Return whether a statement is the list of what a module exports."""
    return isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == "__all__"


def is_never(file: PythonFile, test: ast.AST | None) -> bool:
    """Return whether ``args.amp``, ``args["amp"]``, ``args.get("amp")`` or ``args.amp is True`` is false."""
    if isinstance(test, ast.BoolOp):
        parts = (is_never(file, value) for value in test.values)
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.Compare) and boolean(test.comparators[0]) is True:
        return is_never(file, test.left)
    if isinstance(test, ast.Call) and called_name(test) == "bool" and test.args:
        return is_never(file, test.args[0])
    if boolean(test) is False:
        return True
    whole = name_of(test)
    if isinstance(test, ast.Subscript):
        whole = string(test.slice) or ""
    elif isinstance(test, ast.Call) and called_name(test) == "get":
        whole = string(argument(test, 0, "")) or ""
    if not is_switch(whole):
        return False
    # An argument of a function may come from any switch.
    name = "" if isinstance(test, ast.Name) else whole.rpartition(".")[2]
    return not file.project.may_be_on(name, file.path)
