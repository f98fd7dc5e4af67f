"""Patches of a training loop: a statement moved, left out, or guarded; a batch left out, a loss divided.

Each function returns a unified diff, or an empty string if the source is written in a way that it does not
know for certain.
"""

from __future__ import annotations

import ast

from halfguard.investigation.passes import Made, Place
from halfguard.replaying.source_edits import (
    Loop,
    SourceFile,
    all_calls,
    called_name,
    has_call,
    loops_around,
    owner_of,
    read_statement,
)

_Found = tuple[str, Place | None]


def switch_anomaly_off(script: str) -> _Found:
    """Switch detect_anomaly off, as an argument or as a call; return patch and line."""
    file = SourceFile.read(script) if script else None
    place: Place | None = None
    for call in () if file is None else all_calls(file.tree):
        assert file is not None  # noqa: S101
        given = [k for k in call.keywords if k.arg == "detect_anomaly"]
        given = [k for k in given if isinstance(k.value, ast.Constant) and k.value.value is True]
        if given:
            file.replace(given[0].value, "False")
            place = script, given[0].value.lineno
        elif called_name(call) == "set_detect_anomaly" and call.args:
            file.replace(call.args[0], "False")
            place = script, call.lineno
        elif called_name(call) == "detect_anomaly" and not call.args and not call.keywords:
            file.replace(call, f"{file.source(call.func)}(check_nan=False)")
            place = script, call.lineno
    return ("" if file is None or place is None else file.patch()), place


def divide_by_micro_batches(place: Place) -> str:
    """Divide the loss of a backward pass by the number of passes before a step: that of a range."""
    file, statement = read_statement(place)
    calls = [] if statement is None else list(all_calls(statement))
    backward = [c for c in calls if called_name(c) == "backward" and not c.args]
    loop = None if file is None else _loop_at(file, place[1])
    if file is None or len(backward) != 1 or not isinstance(loop, ast.For):
        return ""
    count = loop.iter
    steps = any(called_name(call) == "step" for call in all_calls(loop))
    if steps or not isinstance(count, ast.Call) or called_name(count) != "range":
        return ""
    function = backward[0].func
    if len(count.args) != 1 or not isinstance(function, ast.Attribute):
        return ""
    file.replace(function.value, f"({file.source(function.value)} / {file.source(count.args[0])})")
    return file.patch()


def leave_out_batch(hides: Place) -> str:
    """Go on with the next batch if a loss is not finite, instead of a line that makes such a loss finite."""
    file, statement = read_statement(hides)
    if file is None or not isinstance(statement, ast.Assign) or _loop_at(file, hides[1]) is None:
        return ""
    target, call = statement.targets[0], statement.value
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if not isinstance(target, ast.Name) or not isinstance(given, ast.Name) or given.id != target.id:
        return ""
    margin = " " * statement.col_offset
    file.replace(statement, f"if not torch.isfinite({target.id}):\n{margin}    continue")
    return file.patch()


def _loop_at(file: SourceFile, line: int) -> Loop | None:
    """Return the innermost loop around a line, in the same function."""
    return next(reversed(loops_around(file.function_at(line) or file.tree, line)), None)


_CLIPPINGS = ("clip_grad_norm_", "clip_grad_value_")
_UNSCALING = (*_CLIPPINGS, "unscale_gradients")  # of Accelerate


def unscale_once(place: Place) -> str:
    """Unscale before the scaler's step only: move the statement there, or leave out a second one."""
    file, statement = read_statement(place)
    if file is None or not isinstance(statement, ast.Expr | ast.Assign):
        return ""
    calls = [c for c in all_calls(statement) if isinstance(c.func, ast.Attribute)]
    for call in calls:
        owner = owner_of(file, call)
        if called_name(call) in _UNSCALING and has_call(file, owner, "accumulate"):
            file.indent(statement, f"if {owner}.sync_gradients:")
            return file.patch()
    unscale = next((c for c in calls if called_name(c) == "unscale_"), None)
    if unscale is None or not isinstance(statement, ast.Expr):
        return ""
    step = step_of(file, owner_of(file, unscale), statement.lineno)
    if step is None:
        return ""
    block = file.block_of(statement)
    if any(one is step for one in block):
        file.remove(statement)
        return file.patch()
    at = next(index for index, one in enumerate(block) if one is statement)
    group: list[ast.stmt] = [statement]
    for one in block[at + 1 :]:  # the clipping that follows it
        if not any(called_name(call) in _CLIPPINGS for call in all_calls(one)):
            break
        group.append(one)
    file.insert_before(step, "\n".join(file.moved(one, step.col_offset) for one in group))
    for one in group:
        file.remove(one)
    return file.patch()


def update_after_step(place: Place) -> str:
    """Move ``scaler.update()`` to directly after the last ``scaler.step(optimizer)`` of its block."""
    file, statement = read_statement(place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if file is None or not isinstance(statement, ast.Expr) or not isinstance(call, ast.Call):
        return ""
    steps = _steps_of(file, owner_of(file, call), file.function_at(place[1]) or file.tree)
    if called_name(call) != "update" or not steps:
        return ""
    block, last = file.block_of(steps[0]), steps[-1]
    if any(all(step is not one for one in block) for step in steps):  # the last one is not certain
        return ""
    file.insert_after(last, file.moved(statement, last.col_offset))
    file.remove(statement)
    return file.patch()


def make_optimizer_last(made: Made) -> tuple[str, Place] | None:
    """Move the statement that makes the optimizer to before its first use; return patch and line."""
    lines = () if made.optimizer is None else (made.optimizer, *made.optimizer_callers)
    for place in lines:
        file, statement = read_statement(place)
        if file is None or statement is None or isinstance(statement, ast.Return):
            continue  # the caller gives it its name
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        name = file.source(statement.targets[0])
        block = file.block_of(statement)
        at = next(index for index, one in enumerate(block) if one is statement)
        later = block[at + 1 :]
        uses = [one for one in later if _mentions(file, one, name)]
        if not later or (uses and uses[0] is later[0]):
            return None
        if uses:
            file.insert_before(uses[0], file.moved(statement, statement.col_offset))
        else:
            file.insert_after(later[-1], file.moved(statement, statement.col_offset))
        file.remove(statement)
        patch = file.patch()
        return (patch, (place[0], statement.lineno)) if patch else None
    return None


def load_if_not_empty(place: Place) -> str:
    """Load the state of a scaler only if there is one."""
    file, statement = read_statement(place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if file is None or statement is None or not isinstance(call, ast.Call) or len(call.args) != 1:
        return ""
    if called_name(call) != "load_state_dict" or not isinstance(
        call.args[0], ast.Name | ast.Subscript | ast.Attribute
    ):
        return ""
    file.indent(statement, f"if {file.source(call.args[0])}:")
    return file.patch()


def cast_arguments(place: Place, error: str) -> str:
    """Cast what is passed to a module to FP32, if half numbers met FP32 weights there."""
    file, statement = read_statement(place)
    half_first = "got Half and Float" in error or "got BFloat16 and Float" in error
    half_first |= "Input type (c10::Half) and" in error or "Input type (c10::BFloat16) and" in error
    if file is None or statement is None or not half_first:
        return ""
    for call in all_calls(statement):
        named = isinstance(call.func, ast.Name | ast.Attribute)
        names = [one for one in call.args if isinstance(one, ast.Name | ast.Attribute)]
        if named and len(call.args) == 1 and names and not call.keywords:
            file.replace(names[0], f"{file.source(names[0])}.float()")
            return file.patch()
    return ""


# -- pieces of a loop


def step_of(file: SourceFile, scaler: str, after: int) -> ast.Expr | None:
    """Return the first statement ``scaler.step(optimizer)`` after a line, in its function."""
    scope = file.function_at(after) or file.tree
    return next((one for one in _steps_of(file, scaler, scope) if one.lineno > after), None)


def _steps_of(file: SourceFile, scaler: str, scope: ast.AST) -> list[ast.Expr]:
    """Return the statements ``scaler.step(optimizer)`` of a function or a file, by line."""
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and file.source(node.value.func) == f"{scaler}.step"
        and node.value.args
    ]
    return sorted(found, key=lambda node: node.lineno)


def _mentions(file: SourceFile, statement: ast.stmt, name: str) -> bool:
    kinds = (ast.Name, ast.Attribute)
    return any(
        isinstance(node, kinds) and file.source(node) == name for node in ast.walk(statement)
    )
