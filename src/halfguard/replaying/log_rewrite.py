"""Rewrite the logarithm of a probability in the source, also if it was assigned to a name before.

``p = torch.sigmoid(x)`` and later ``torch.log(p + 1e-8)`` becomes ``torch.nn.functional.logsigmoid(x)``.
There is a patch only if it is certain: one assignment of the name before the line, in the same function, of
logits that call nothing, and nothing that they use is assigned in between.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from halfguard.replaying.rewrite import splice, unified_diff


def patch_log(file: str, line: int) -> str:
    """Return a unified diff that computes the logarithms of one line from logits; empty if not certain."""
    try:
        before = Path(file).read_text("utf-8")
        tree = ast.parse(before)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno == line and _name(node) == "log":
            new = _from_logits(_argument(node), tree, line, lambda part: _source(before, part))
            if new:
                return unified_diff(file, before, splice(before, node, new))
    return ""


def _from_logits(
    value: ast.expr, tree: ast.Module, line: int, source: Callable[[ast.expr], str]
) -> str:
    """Return the logarithm of a probability as an expression of its logits; empty if it is none."""
    if isinstance(value, ast.Name):
        found = _assigned(value.id, tree, line)
        return _from_logits(found, tree, line, source) if found is not None else ""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _from_logits(value.left, tree, line, source)
    if not isinstance(value, ast.Call):
        return ""
    if _name(value) in ("clamp", "clamp_min", "float") and isinstance(value.func, ast.Attribute):
        return _from_logits(value.func.value, tree, line, source)
    logits = _argument(value)
    if value.lineno < line and not _still_holds(logits, tree, value.lineno, line):
        return ""
    if _name(value) == "sigmoid":
        return f"torch.nn.functional.logsigmoid({source(logits)})"
    if _name(value) == "softmax":
        rest = [source(arg) for arg in value.args if arg is not logits]
        rest += [f"{k.arg}={source(k.value)}" for k in value.keywords if k.arg]
        return f"torch.log_softmax({', '.join([source(logits), *rest])})" if rest else ""
    return ""


def _still_holds(logits: ast.expr, tree: ast.Module, first: int, line: int) -> bool:
    """Return whether an expression has the same value on a later line."""
    nodes = list(ast.walk(logits))
    if any(isinstance(node, ast.Call) for node in nodes):  # a model would be run twice
        return False
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return not any(first < row < line for name in used for row in _rows(name, tree))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _argument(call: ast.Call) -> ast.expr:
    """Return what a function, or a method, is applied to."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - _name was not empty
    owner = call.func.value
    text = ast.unparse(owner)
    is_module = text in ("torch", "F", "functional", "nn.functional", "torch.nn.functional")
    return call.args[0] if is_module and call.args else owner


def _assigned(name: str, tree: ast.Module, line: int) -> ast.expr | None:
    """Return the value of the one assignment of a name before a line, in the same function."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
    if not around:
        return None
    inner = max(around, key=lambda f: f.lineno)
    found = [
        node.value
        for node in ast.walk(inner)
        if isinstance(node, ast.Assign)
        and node.lineno < line
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return found[0] if len(found) == 1 else None


def _rows(name: str, tree: ast.Module) -> list[int]:
    """Return the lines that assign a name."""
    stores = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return [node.lineno for node in stores if node.id == name]


def _source(text: str, part: ast.expr) -> str:
    return ast.get_source_segment(text, part) or ""
