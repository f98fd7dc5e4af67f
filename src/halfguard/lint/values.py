"""Where a value comes from: through assignments and views, and the module that made it."""

from __future__ import annotations

import ast

from halfguard.lint.expressions import called_name
from halfguard.lint.python_file import PythonFile

_VIEWS = {
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "clone", "transpose", "permute", "t",
    "gather", "index_select", "expand", "expand_as", "view_as", "narrow", "select", "cpu", "cuda", "detach",
    "stack", "cat", "amax", "amin", "max", "min",
}  # fmt: skip


def origin_of(file: PythonFile, node: ast.expr) -> ast.expr:
    """Return the expression that computed a value, through assignments, subscripts, views and extremes."""
    for _ in range(8):
        if isinstance(node, ast.Name):
            assigned = file.last_assignment(node)
            if assigned is None or assigned.value is None:
                return node
            node = assigned.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.List | ast.Tuple) and node.elts:
            node = node.elts[0]
        elif isinstance(node, ast.Call) and called_name(node) in _VIEWS:
            source = file.tensor_of(node)
            if source is None:
                return node
            node = source
        else:
            return node
    return node


def module_class(file: PythonFile, call: ast.Call) -> str:
    """Return the class whose instance a call runs: the last one of a ``Sequential``; empty if not known."""
    made: ast.expr | None = call.func
    for _ in range(4):
        if isinstance(made, ast.Name | ast.Attribute):
            assigned = file.last_assignment(made)
            made = assigned.value if assigned else None
        elif isinstance(made, ast.Call) and called_name(made) == "Sequential" and made.args:
            made = made.args[-1]
        else:
            break
    return called_name(made) if isinstance(made, ast.Call) and made is not call else ""
