"""A patch that adds a scaler to a loop without one."""

from __future__ import annotations

import ast

from halfguard.investigation.order_patches import owner_of, steps_around
from halfguard.investigation.passes import Made, Place
from halfguard.investigation.source_patches import all_calls, called_name, calls_at
from halfguard.replaying.source_edits import SourceFile


def add_scaler(backward: Place, made: Made, scale: float) -> str:
    """Scale the loss of a backward pass, and let the scaler step; return the patch."""
    file = SourceFile.read(backward[0])
    statement = None if file is None else file.statement_at(backward[1])
    if file is None or statement is None:
        return ""
    calls = [c for c in all_calls(statement) if called_name(c) == "backward"]
    steps = [c for c in steps_around(file, statement.lineno) if not c.args]
    stepping = file.statement_at(steps[0].lineno) if len(steps) == 1 else None
    function = calls[0].func if len(calls) == 1 else None
    taken = any(isinstance(n, ast.Name) and n.id == "scaler" for n in ast.walk(file.tree))
    scaler = "grad_scaler" if taken else "scaler"
    if stepping is None or not isinstance(function, ast.Attribute):
        return ""
    if not _make(file, statement, made, f"{scaler} = ", f"init_scale={scale!r}"):
        return ""
    file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
    margin, optimizer = " " * stepping.col_offset, owner_of(file, steps[0])
    file.replace(stepping, f"{scaler}.step({optimizer})\n{margin}{scaler}.update()")
    for clipping in _clippings(file, statement.lineno, stepping.lineno)[:1]:
        line = f"{' ' * clipping.col_offset}{scaler}.unscale_({optimizer})"
        file.insert_before(clipping, line)
    return file.patch()


def _make(file: SourceFile, backward: ast.stmt, made: Made, target: str, options: str) -> bool:
    """Make the scaler after the optimizer, if that is known in the loop's function; else before the loop."""
    around = file.function_at(backward.lineno)
    is_here = made.optimizer is not None and made.optimizer[0] == file.path
    making = file.statement_at(made.optimizer[1]) if made.optimizer and is_here else None
    if making is not None and file.function_at(making.lineno) in (None, around):
        scaler = f"torch.amp.GradScaler({_device(file, making.lineno, made)}, {options})"
        file.insert_after(making, f"{' ' * making.col_offset}{target}{scaler}")
        return True
    loops = [
        node
        for node in ast.walk(around or file.tree)
        if isinstance(node, ast.For | ast.While)
        and node.lineno < backward.lineno <= (node.end_lineno or 0)
    ]
    if not loops:
        return False
    loop = min(loops, key=lambda node: node.lineno)
    scaler = f"torch.amp.GradScaler({_device(file, loop.lineno, made)}, {options})"
    row, column = loop.lineno, loop.col_offset
    start = ast.Pass(lineno=row, col_offset=column, end_lineno=row, end_col_offset=column)
    file.replace(start, f"{target}{scaler}\n{' ' * column}")
    return True


def _clippings(file: SourceFile, first: int, last: int) -> list[ast.stmt]:
    """Return the statements between two lines that clip gradients."""
    lines = {c.lineno for c in all_calls(file.tree) if called_name(c).startswith("clip_grad")}
    found = [file.statement_at(line) for line in sorted(lines) if first < line < last]
    return [statement for statement in found if statement is not None]


def _device(file: SourceFile, line: int, made: Made) -> str:
    """Return the device of the FP16 region as it is written there, if its names are known on a line."""
    region = made.autocast
    if region is not None and region[0] == file.path:
        same = file.function_at(region[1]) is file.function_at(line)
        for call in calls_at(file, region[1]):
            named = [k.value for k in call.keywords if k.arg == "device_type"]
            given = [*call.args[:1], *named] if called_name(call) == "autocast" else []
            if given and (same or isinstance(given[0], ast.Constant)):
                return file.source(given[0])
    return f'"{made.autocast_device}"'
