"""Steps that are skipped: ranks that wait, a scale that never falls, an update without a check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import is_gradient_check, is_health_check, is_loss_check
from halfguard.lint.expressions import called_name
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.steps import Event, Step
from halfguard.repairs.steps import update_before_continue

_COLLECTIVES = re.compile(r"all_reduce|all_gather|any_rank|broadcast|reduce_boolean|reduce_mean")
_HANGS = "A rank that {} here skips the backward pass, and the other ranks hang."


@rule("HG301", "isnan", "isinf", "isfinite", also=("backward", "training_step", "scaler("))
def check_hangs(file: PythonFile) -> Iterator[Match]:
    """Find skips that the ranks do not agree on."""
    if file.roles.may_be_distributed:
        for step in file.steps:
            if step.has("optimizer_step", "scaler_step"):
                yield from _check_skips(file, step)
                yield from _check_conditional_backward(file, step)
    for function in file.functions:
        if function.name == "training_step" and file.class_of(function) is not None:
            yield from _check_training_step(file, function)


def _agree(file: PythonFile, node: ast.AST) -> bool:
    """Return whether ranks exchange something before a node, in its function or in one that it calls."""
    scope, last = file.function_of(node) or file.root, getattr(node, "end_lineno", 0)
    calls = [n for n in ast.walk(scope) if isinstance(n, ast.Call) and n.lineno <= last]
    called = [ast.unparse(f) for f in map(file.local_function, calls) if f is not None]
    return any(map(_COLLECTIVES.search, (*map(called_name, calls), *called)))


def _check_skips(file: PythonFile, step: Step) -> Iterator[Match]:
    for skip in step.find("continue", "return", "break"):
        later = step.events[step.events.index(skip) :]
        runs_later = any(e.kind in ("backward", "scaled_backward") for e in later)
        if step.before(skip, "backward", "scaled_backward") or not skip.tests or not runs_later:
            continue
        tests = _tests_around(file, skip.node)
        if any(is_loss_check(file, test) for test in tests) and not _agree(file, skip.node):
            yield match_at(skip.node, _HANGS.format("exits"))


def _tests_around(file: PythonFile, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests of ``if`` statements whose bad branch a node is in, up to its loop."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If):
            if any(isinstance(n, ast.Raise) for n in ast.walk(parent)):
                return  # the run ends
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
        if branch is None or not is_loss_check(file, branch.test) or _agree(file, branch.test):
            continue
        if branch.test in event.tests and not any(event.excludes(other) for other in backwards):
            yield match_at(branch.test, _HANGS.format("fails this test"))


def _check_training_step(file: PythonFile, function: ast.AST) -> Iterator[Match]:
    for node in (one for one in ast.walk(function) if isinstance(one, ast.Return)):
        branch, value = file.parents.get(node), node.value
        is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
        if not isinstance(branch, ast.If) or not is_none:
            continue
        if is_loss_check(file, branch.test) and not _agree(file, node):
            yield match_at(node, _HANGS.format("exits"))


@rule("HG302", "caler", also=(".step(",))
def check_skips(file: PythonFile) -> Iterator[Match]:
    """Find skips that never decrease the scale."""
    for step in file.steps:
        for skip in step.find("continue") if step.has("scaler_step") else ():
            scaled = step.before(skip, "scaled_backward")
            if not scaled or not skip.tests or not is_health_check(file, skip.tests[-1]):
                continue
            if any(e.kind == "scaler_update" for e in step.between(scaled[0], skip)):
                continue
            unscaled = step.before(skip, "unscale")
            if not unscaled and not is_gradient_check(file, skip.tests[-1]):
                continue
            fix: Fix | None = None
            if unscaled and file.function_of(unscaled[0].node) is file.function_of(skip.node):
                lines = scaled[0].node.lineno, skip.node.lineno
                fix = file.fix("safe", update_before_continue.edit, *lines)
            yield match_at(skip.node, "This skips the step, but the scale never decreases.", fix)


@rule("HG303", "caler", also=(".step(",))
def check_updates(file: PythonFile) -> Iterator[Match]:
    """Find updates without an inf check."""
    for step in file.steps:
        for update in step.find("scaler_update") if step.has("scaler_step") else ():
            call = update.node
            if not isinstance(call, ast.Call) or call.args or call.keywords:
                continue  # update(new_scale) needs no check
            if called_name(call) != "update" or not step.before(update, "scaled_backward"):
                continue
            checks = step.before(update, "scaler_step", "unscale")
            if not checks:
                yield match_at(
                    call, "update() raises an error here because neither unscale_ nor step has run."
                )
            elif all(_is_rarer(check, update) for check in checks):
                yield match_at(call, "update() raises an error in a micro-batch without a step. "
                                     "Put it under the condition of the step.")  # fmt: skip


def _is_rarer(check: Event, update: Event) -> bool:
    """Return whether an inf check depends on a schedule of accumulation that the update does not."""
    return any(
        re.search(r"%|accum", text) and (text, truth) not in update.conditions
        for text, truth in check.conditions
    )
