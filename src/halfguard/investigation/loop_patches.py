"""Patches of the loop around a backward pass: its batch left out, its loss divided, its checks off."""

from __future__ import annotations

import ast

from halfguard.investigation.passes import Place
from halfguard.investigation.source_nodes import (
    Loop,
    all_calls,
    called_name,
    loops_around,
    read_statement,
)
from halfguard.replaying.source_edits import SourceFile

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
