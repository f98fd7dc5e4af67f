"""Mend a step on gradients that are still scaled: by the scaler, or left out if the scaler has stepped."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import Place, SourceFile, all_calls, called_name, calls_at


@Repair
def leave_out_step(file: SourceFile, line: int) -> None:
    """Leave the statement out: the scaler has stepped before."""
    statement = file.statement_at(line)
    if isinstance(statement, ast.Expr):
        file.remove(statement)


@Repair
def step_by_scaler(file: SourceFile, line: int, scaling: Place | None) -> None:
    """Step by the scaler whose scaling is known; both lines must be in one function."""
    statement, optimizer = file.statement_at(line), stepped_at(file, line)
    if statement is None or not optimizer or scaling is None or scaling[0] != file.path:
        return
    scales = [c for c in calls_at(file, scaling[1]) if called_name(c) == "scale"]
    same = file.function_at(scaling[1]) is file.function_at(line)
    if not scales or not same or not isinstance(scales[0].func, ast.Attribute):
        return
    scaler, margin = file.source(scales[0].func.value), " " * statement.col_offset
    scope = file.function_at(line) or file.tree
    updates = (c for c in all_calls(scope) if file.source(c.func) == f"{scaler}.update")
    update = "" if any(call.lineno > line for call in updates) else f"\n{margin}{scaler}.update()"
    file.replace(statement, f"{scaler}.step({optimizer}){update}")


def stepped_at(file: SourceFile, line: int) -> str:
    """Return the optimizer of a statement ``optimizer.step()``; empty if it is none."""
    statement = file.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ""
    return file.source(call.func.value) if call.func.attr == "step" else ""
