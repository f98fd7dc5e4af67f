"""One rank skips a backward pass in which the other ranks wait for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import is_loss_check
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Step

META = Meta(
    contains=("isnan", "isinf", "isfinite"),
    also_contains=("backward", "training_step", "scaler("),
)
_MESSAGE = "A rank that exits here skips the backward pass, and the other ranks hang."
_COLLECTIVES = ("all_reduce", "all_gather", "any_rank", "broadcast", "reduce_boolean")


def check(file: PythonFile) -> Iterator[Match]:
    """Find skips that the ranks do not agree on."""
    if any(word in file.source.text for word in _COLLECTIVES):
        return
    if file.roles.may_be_distributed or file.project.distributed:
        for step in file.steps:
            if not step.has("optimizer_step", "scaler_step"):
                continue
            yield from _check_skips(file, step)
            yield from _check_conditional_backward(file, step)
    for function in file.functions:
        if function.name == "training_step" and file.class_of(function) is not None:
            yield from _check_training_step(file, function)


def _check_skips(file: PythonFile, step: Step) -> Iterator[Match]:
    for skip in step.find("continue", "return"):
        if step.before(skip, "backward", "scaled_backward") or not skip.tests:
            continue
        if any(is_loss_check(file, test) for test in _tests_around(file, skip.node)):
            yield match_at(skip.node, _MESSAGE)


def _tests_around(file: PythonFile, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests of ``if`` statements whose bad branch a node is in, up to its loop."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If):
            text = ast.unparse(parent.test)
            is_good = "finite" in text and not text.startswith("not ")
            if (child in parent.body) != is_good:
                yield parent.test
        elif isinstance(parent, ast.stmt) and not isinstance(parent, ast.With):
            return
        child = parent


def _check_conditional_backward(file: PythonFile, step: Step) -> Iterator[Match]:
    """Find a backward pass that runs only if the loss is finite, without another one in its place."""
    backwards = step.find("backward", "scaled_backward")
    for event in backwards:
        branch = next((p for p in file.ancestors(event.node) if isinstance(p, ast.If)), None)
        if branch is None or not is_loss_check(file, branch.test):
            continue
        if branch.test in event.tests and not any(event.excludes(other) for other in backwards):
            yield match_at(branch.test, "A rank that fails this test skips the backward pass, and the "
                           "other ranks hang.")  # fmt: skip


def _check_training_step(file: PythonFile, function: ast.AST) -> Iterator[Match]:
    for node in file.nodes(ast.Return):
        branch, value = file.parents.get(node), node.value
        is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
        if not isinstance(branch, ast.If) or not is_none or function not in file.ancestors(node):
            continue
        if is_loss_check(file, branch.test):
            yield match_at(node, _MESSAGE)
