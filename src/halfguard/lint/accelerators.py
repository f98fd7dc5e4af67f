"""Accelerators of a file: the precision and the gradient accumulation that they are asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, number, string
from halfguard.lint.python_file import PythonFile

_OFFERS_FP16 = re.compile(r"[\"']fp16[\"']")


def may_run_in_fp16(file: PythonFile) -> bool:
    """Return whether an Accelerator of this file is asked for fp16, or for what an option says."""
    asked = [argument(call, -1, "mixed_precision") for call in file.calls("Accelerator")]
    values = [file.assigned_value(node) for node in asked if node is not None]
    if any(string(value) == "fp16" for value in values):
        return True
    chosen = any(not isinstance(value, ast.Constant) for value in values)
    return chosen and bool(_OFFERS_FP16.search(file.source.text)) and _offers_fp16(file)


def accumulates_gradients(file: PythonFile) -> bool:
    """Return whether an Accelerator of this file is asked for more than one micro-batch per step."""
    for call in file.calls("Accelerator"):
        steps = argument(call, -1, "gradient_accumulation_steps")
        if steps is not None and number(file.assigned_value(steps)) != 1:
            return True
        if argument(call, -1, "gradient_accumulation_plugin") is not None:
            return True
    stored = (n for n in file.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store))
    return any(node.attr == "gradient_accumulation_steps" for node in stored)


def _offers_fp16(file: PythonFile) -> bool:
    """Return whether the file has "fp16" as a value, or in a comparison that does not forbid it."""
    return any(not _is_forbidden(file, node) for node in _fp16_strings(file))


def _fp16_strings(file: PythonFile) -> Iterator[ast.AST]:
    return (node for node in ast.walk(file.root) if string(node) == "fp16")


def _is_forbidden(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a string is compared, and the code goes on only if the comparison fails."""
    compared, wanted, child = False, True, node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.Compare):
            compared = True
            if any(isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) for op in parent.ops):
                wanted = not wanted
        elif isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            wanted = not wanted
        elif isinstance(parent, ast.stmt):
            if isinstance(parent, ast.If) and child is parent.test:
                wanted = wanted != isinstance(parent.body[-1], ast.Raise)
            break
        child = parent
    return compared and not wanted
