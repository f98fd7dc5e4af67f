"""Give a loop a scaler: it scales the loss, unscales before gradients are looked at, and steps."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import names_gradients, steps_around
from halfguard.repairs.source_file import (
    Place,
    SourceFile,
    all_calls,
    called_name,
    loops_around,
    own_nodes,
)


@dataclass(frozen=True)
class Region:
    """Where a run has made its optimizer and its FP16 region, and the device of that."""

    optimizer: Place | None
    autocast: Place | None
    device: str


@Repair
def add_scaler(file: SourceFile, line: int, made: Region, scale: float) -> None:
    """Scale the loss of a backward pass, and let the scaler step."""
    statement = file.statement_at(line)
    if statement is None:
        return
    scope = file.function_at(statement.lineno) or file.tree
    calls = [c for c in all_calls(scope) if called_name(c) == "backward"]
    steps = [c for c in steps_around(file, statement.lineno) if not c.args]
    stepping = file.statement_at(steps[0].lineno) if len(steps) == 1 else None
    function = calls[0].func if len(calls) == 1 else None
    taken = any(isinstance(n, ast.Name) and n.id == "scaler" for n in ast.walk(file.tree))
    scaler = "grad_scaler" if taken else "scaler"
    if not isinstance(stepping, ast.Expr) or not isinstance(function, ast.Attribute):
        return
    looking, beside = _first_look(file, statement, stepping)
    if not statement.lineno <= function.lineno <= (statement.end_lineno or 0) or not beside:
        return
    if not _make(file, statement, made, f"{scaler} = ", f"init_scale={scale!r}"):
        return
    file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
    margin, optimizer = " " * stepping.col_offset, file.owner_of(steps[0])
    file.replace(stepping, f"{scaler}.step({optimizer})\n{margin}{scaler}.update()")
    if looking is not None:
        _insert_between(file, statement, looking, f"{margin}{scaler}.unscale_({optimizer})")


def _insert_between(file: SourceFile, first: ast.stmt, last: ast.stmt, line: str) -> None:
    """Write a line before a statement; directly after the first one of its block, if it is compound."""
    if not file.is_alone(last) and any(one is first for one in file.block_of(last)):
        file.insert_after(first, line)
    else:
        file.insert_before(last, line)


def _make(file: SourceFile, backward: ast.stmt, made: Region, target: str, options: str) -> bool:
    """Make the scaler after the optimizer, if that is known in the loop's function; else before the loop."""
    around = file.function_at(backward.lineno)
    is_here = made.optimizer is not None and made.optimizer[0] == file.path
    making = file.statement_at(made.optimizer[1]) if made.optimizer and is_here else None
    if making is not None and file.function_at(making.lineno) not in (None, around):
        making = None
    at = making or next(iter(loops_around(around or file.tree, backward.lineno)), None)
    if at is None:
        return False
    scaler = f"torch.amp.GradScaler({_device(file, at.lineno, made)}, {options})"
    insert = file.insert_before if making is None else file.insert_after
    insert(at, f"{' ' * at.col_offset}{target}{scaler}")
    return True


def _device(file: SourceFile, line: int, made: Region) -> str:
    """Return the device of the FP16 region as it is written there, if its names are known on a line."""
    region = made.autocast
    if region is not None and region[0] == file.path:
        same = file.function_at(region[1]) is file.function_at(line)
        for call in file.calls_at(region[1]):
            named = [k.value for k in call.keywords if k.arg == "device_type"]
            given = [*call.args[:1], *named] if called_name(call) == "autocast" else []
            if given and (same or isinstance(given[0], ast.Constant)):
                return file.source(given[0])
    return f'"{made.device}"'


def _looks_at_gradients(node: ast.AST) -> bool:
    """Return whether an expression may read or change gradients, functions of the user's own included."""
    if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
        return True
    function = node.func if isinstance(node, ast.Call) else None
    own = isinstance(function, ast.Name) and not hasattr(builtins, function.id)
    return own or names_gradients(node)


def _first_look(
    file: SourceFile, backward: ast.stmt, stepping: ast.stmt
) -> tuple[ast.stmt | None, bool]:
    """Return the first statement beside a step that looks at gradients, and whether all stand beside it.

    What stands elsewhere between the backward pass and the step may run more often than the step.
    """
    block = file.block_of(stepping)
    scope = file.function_at(stepping.lineno) or file.tree
    looking, beside = list[ast.stmt](), True
    for node in own_nodes(scope):
        line = getattr(node, "lineno", 0)
        if not (backward.end_lineno or 0) < line < stepping.lineno or not _looks_at_gradients(node):
            continue
        around = [one for one in block if one.lineno <= line <= (one.end_lineno or 0)]
        holds_backward = [one for one in around if one.lineno <= backward.lineno]
        looking += around
        beside &= bool(around) and not holds_backward
    return min(looking, key=lambda one: one.lineno, default=None), beside
