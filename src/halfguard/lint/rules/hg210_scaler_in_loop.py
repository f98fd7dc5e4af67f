"""A new scaler is created in every iteration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.syntax_tree import Function

META = Meta(
    contains=("GradScaler",),
)
_EPOCHS = re.compile(r"epoch|(^|_)(ep|it|iter|iteration|step)s?($|_)", re.IGNORECASE)


def check(file: PythonFile) -> Iterator[Match]:
    """Find scalers that are created in a loop around a training step."""
    if file.autocast.is_bfloat16:
        return
    steps = [step for step in file.steps if step.has("scaled_backward")]
    inner = {step.loop for step in steps}
    outer = {loop for step in steps for event in step.events for loop in event.loops} - inner
    trained = {file.function_of(e.node) for s in steps for e in s.events}
    for call in file.roles.constructed_scalers:
        around = list(_around(file, call))
        if any(p in inner or (p in outer and _is_over_epochs(p)) for p in around):
            yield match_at(call, "Every iteration starts again with the initial scale.")
            continue
        function = file.function_of(call)
        if function is None or function not in trained:
            continue
        is_used = _is_called_per_epoch(file, function)
        if is_used or ("epoch" in function.name and not _is_unused(file, function)):
            yield match_at(call, "Every call of this function starts again with the initial scale.")


def _around(file: PythonFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node that are in the same function."""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        yield parent


def _is_called_per_epoch(file: PythonFile, function: Function) -> bool:
    return any(
        _is_over_epochs(parent)
        for call in file.calls(function.name)
        if file.local_function(call) is function
        for parent in _around(file, call)
    )


def _is_unused(file: PythonFile, function: Function) -> bool:
    """Return whether a program defines a function and never names it again."""
    is_program = "__main__" in file.source.text and file.class_of(function) is None
    return is_program and len(re.findall(rf"\b{function.name}\b", file.source.text)) == 1


def _is_over_epochs(node: ast.AST) -> bool:
    """Return whether a loop continues one training; another loop may train a new model in each round."""
    if isinstance(node, ast.While):
        return bool(_EPOCHS.search(ast.unparse(node.test)))
    if isinstance(node, ast.For):
        return bool(_EPOCHS.search(ast.unparse(node.target) + ast.unparse(node.iter)))
    return False
