"""Patches of a loop that misuses its scaler: steps without it, or iterations that never update it."""

from __future__ import annotations

import ast
from collections.abc import Callable

from halfguard.investigation.passes import Made, Place
from halfguard.investigation.source_nodes import called_name, calls_at, loops_around, read_statement
from halfguard.investigation.source_patches import switch_on
from halfguard.replaying.source_edits import SourceFile


def step_by_scaler(made: Made) -> list[str]:
    """Return ways to mend a step on gradients that are still scaled, the most specific first."""
    if made.raw_step is None:
        return []
    ways: list[Callable[[Place, Made], str]] = [_prepare_optimizer, _lightning_optimizer]
    ways.append(_leave_out_step if made.stepped_by_scaler else _call_scaler)
    return [patch for way in ways if (patch := way(made.raw_step, made))]


def _leave_out_step(place: Place, made: Made) -> str:  # noqa: ARG001
    """Leave the statement out: the scaler has stepped before."""
    file, statement = read_statement(place)
    if file is None or not isinstance(statement, ast.Expr):
        return ""
    file.replace(statement, "pass")
    return file.patch()


def _call_scaler(place: Place, made: Made) -> str:
    """Step by the scaler whose scaling is known; both lines must be in one function."""
    found = _stepped(place)
    if found is None or made.scaling is None or made.scaling[0] != place[0]:
        return ""
    file, statement, optimizer = found
    scales = [c for c in calls_at(file, made.scaling[1]) if called_name(c) == "scale"]
    same = file.function_at(made.scaling[1]) is file.function_at(place[1])
    if not scales or not same or not isinstance(scales[0].func, ast.Attribute):
        return ""
    scaler, margin = file.source(scales[0].func.value), " " * statement.col_offset
    file.replace(statement, f"{scaler}.step({optimizer})\n{margin}{scaler}.update()")
    return file.patch()


def _prepare_optimizer(place: Place, made: Made) -> str:  # noqa: ARG001
    """Give the optimizer to Accelerate's prepare, if it was left out there."""
    found = _stepped(place)
    return "" if found is None else add_to_prepare(place, found[2])[0]


def add_to_prepare(place: Place, name: str) -> tuple[str, Place]:
    """Give something more to Accelerate's prepare, in the file of a line; return the patch and the line."""
    file = SourceFile.read(place[0])
    for node in () if file is None else ast.walk(file.tree):
        value = node.value if isinstance(node, ast.Assign) else None
        if (
            file is None
            or not isinstance(node, ast.Assign)
            or not isinstance(value, ast.Call)
            or called_name(value) != "prepare"
        ):
            continue
        given = [file.source(argument) for argument in value.args]
        if name not in given and len(node.targets) == 1:
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            left = ", ".join([*map(file.source, names), name])
            function = file.source(value.func)
            file.replace(node, f"{left} = {function}({', '.join([*given, name])})")
            return file.patch(), (file.path, node.lineno)
    return "", place


def _lightning_optimizer(place: Place, made: Made) -> str:  # noqa: ARG001
    """Let Lightning wrap its optimizers, so that their steps unscale."""
    return switch_on(place, "use_pl_optimizer", anywhere=True)


def _stepped(place: Place) -> tuple[SourceFile, ast.stmt, str] | None:
    """Return the statement ``optimizer.step()`` on a line, and the optimizer."""
    file, statement = read_statement(place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if file is None or statement is None or not isinstance(call, ast.Call):
        return None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    return file, statement, file.source(call.func.value)


def update_before_continue(made: Made) -> tuple[str, Place] | None:
    """Let an iteration that is left by ``continue`` step and update the scaler; return patch and line."""
    if made.scaling is None:
        return None
    file = SourceFile.read(made.scaling[0])
    loops = [] if file is None else loops_around(file.tree, made.scaling[1])
    if file is None or not loops:
        return None
    loop = loops[-1]
    scales = [call for call in calls_at(file, made.scaling[1]) if called_name(call) == "scale"]
    if not scales or not isinstance(scales[0].func, ast.Attribute):
        return None
    scaler = file.source(scales[0].func.value)
    steps = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and file.source(node.func) == f"{scaler}.step"
    ]
    inner = {
        id(node)
        for other in ast.walk(loop)
        if isinstance(other, ast.For | ast.While) and other is not loop
        for node in ast.walk(other)
    }
    lines = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.Continue)
        and node.lineno > made.scaling[1]
        and id(node) not in inner  # which goes on with an inner loop
    ]
    if not steps or not lines or lines[0].lineno > steps[0].lineno:
        return None
    # In ``if bad: continue`` the calls share the line.
    gap = f"\n{' ' * lines[0].col_offset}" if file.is_alone(lines[0]) else "; "
    file.replace(lines[0], gap.join([file.source(steps[0]), f"{scaler}.update()", "continue"]))
    patch = file.patch()
    return (patch, (file.path, lines[0].lineno)) if patch else None
