"""Conditions in a training loop: mixed precision, NaN checks, accumulation schedules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.syntax_tree import SyntaxTree

Condition = tuple[str, bool]  # the text of a test, and the result that it must have
AMP_IS_ON = "mixed precision is on"

_AMP = re.compile(
    r"(?<![a-z])(amp|fp16|float16|scaler|half|mixed|precision|autocast)(?![a-z])", re.I
)
_NOT_AMP = re.compile(r"isnan|isinf|isfinite|accum|%|norm|sync|step|get_scale", re.I)
# A test that asks for full precision.
_FULL = re.compile(r"fp32|float32|[\"'](32|full|no|none)\b|==\s*32\b", re.I)
_CHECKS = re.compile(r"isnan|isinf|isfinite|is_finite|is_nan|\bnan\b")
_FLAGS = re.compile(
    r"(nan|inf|overflow|finite|bad_|skip|unstable|invalid|grad_?norm|total_norm)", re.I
)
_SHORT = 8  # statements of a function that does nothing else
_SCHEDULE = re.compile(r"%|accum|sync|epoch|resume|start|warm", re.I)


def condition_of(test: ast.expr) -> Condition:
    """Return a test as a condition; every way to ask "is AMP on?" gives the same one."""
    truth = True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, truth = test.operand, not truth
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_falsy = isinstance(test.comparators[0], ast.Constant) and not test.comparators[0].value
        if is_falsy and isinstance(test.ops[0], ast.Is | ast.Eq):
            test, truth = test.left, not truth
        elif is_falsy and isinstance(test.ops[0], ast.IsNot | ast.NotEq):
            test = test.left
    text = ast.unparse(test)
    if _AMP.search(text) and not _NOT_AMP.search(text):
        asks_for_full = _FULL.search(text) is not None
        truth = truth == (asks_for_full == _is_negated(test))
        text = AMP_IS_ON
    return text, truth


def _is_negated(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq | ast.IsNot)


def exclude_each_other(tree: SyntaxTree, first: ast.AST, second: ast.AST) -> bool:
    """Return whether two nodes are in opposite branches of a test, such as the one for float16."""
    mine = dict(_conditions_around(tree, first))
    return any(mine.get(text, truth) != truth for text, truth in _conditions_around(tree, second))


def is_for_full_precision(tree: SyntaxTree, node: ast.AST) -> bool:
    """Return whether a node is in the branch of a test that runs if float16 is off."""
    return (AMP_IS_ON, False) in _conditions_around(tree, node)


def _conditions_around(tree: SyntaxTree, node: ast.AST) -> Iterator[Condition]:
    """Yield the tests around a node, with the result that each must have."""
    child = node
    for parent in tree.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            text, truth = condition_of(parent.test)
            body = parent.body if isinstance(parent, ast.If) else [parent.body]
            yield text, truth if child in body else not truth
        child = parent


def is_health_check(tree: SyntaxTree, test: ast.expr) -> bool:
    """Return whether a test is about NaN, infinity or the size of a gradient."""
    text = ast.unparse(test)
    if _SCHEDULE.search(text):
        return False
    if _CHECKS.search(text) or _CHECKS.search(_assigned_text(tree, test)):
        return True
    return bool(_FLAGS.search(text)) or bool(_CHECKS.search(_called_text(tree, test)))


def is_gradient_check(tree: SyntaxTree, test: ast.expr) -> bool:
    """Return whether a test looks for NaN or infinity in gradients or in their norm."""
    names = [n for n in ast.walk(test) if isinstance(n, ast.Name)]
    parts = [ast.unparse(test), _called_text(tree, test)]
    text = " ".join([*parts, *(_assigned_text(tree, name) for name in names)])
    return bool(_CHECKS.search(text)) and bool(re.search(r"grad|norm", text, re.I))


def _called_text(tree: SyntaxTree, test: ast.expr) -> str:
    """Return the source of the short functions of this file that a test calls."""
    calls = (node for node in ast.walk(test) if isinstance(node, ast.Call))
    functions = (tree.local_function(call) for call in calls)
    short = (f for f in functions if f is not None and len(f.body) <= _SHORT)
    return " ".join(ast.unparse(statement) for function in short for statement in function.body)


def is_loss_check(tree: SyntaxTree, test: ast.expr) -> bool:
    """Return whether a health check is about a loss, before any gradient exists."""
    names = [n for n in ast.walk(test) if isinstance(n, ast.Name)]
    text = " ".join([ast.unparse(test), *(_assigned_text(tree, name) for name in names)])
    return is_health_check(tree, test) and bool(re.search(r"loss", text, re.I))


def _assigned_text(tree: SyntaxTree, test: ast.expr) -> str:
    """Return the source of the value last assigned to a name; empty for other expressions."""
    assigned = tree.last_assignment(test) if isinstance(test, ast.Name) else None
    return ast.unparse(assigned.value) if assigned and assigned.value is not None else ""


def is_schedule_check(test: ast.expr) -> bool:
    """Return whether a test is about a schedule, such as every n-th micro-batch."""
    return bool(_SCHEDULE.search(ast.unparse(test)))
