"""Unscale before the scaler's step only: move the statement there, or leave out a second one."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import CLIPPINGS, scaler_steps
from halfguard.repairs.source_file import SourceFile, all_calls, called_name, has_call, owner_of

_UNSCALING = (*CLIPPINGS, "unscale_gradients")  # of Accelerate


@Repair
def unscale_once(file: SourceFile, line: int) -> None:
    """Unscale once per step."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return
    calls = [c for c in all_calls(statement) if isinstance(c.func, ast.Attribute)]
    for call in calls:
        owner = owner_of(file, call)
        if called_name(call) in _UNSCALING and has_call(file, owner, "accumulate"):
            file.indent(statement, f"if {owner}.sync_gradients:")
            return
    unscale = next((c for c in calls if called_name(c) == "unscale_"), None)
    if unscale is None or not isinstance(statement, ast.Expr):
        return
    steps = scaler_steps(file, owner_of(file, unscale), file.function_at(line) or file.tree)
    step = next((one for one in steps if one.lineno > line), None)
    if step is None:
        return
    block = file.block_of(statement)
    if any(one is step for one in block):
        file.remove(statement)
        return
    at = next(index for index, one in enumerate(block) if one is statement)
    group: list[ast.stmt] = [statement]
    for one in block[at + 1 :]:  # the clipping that follows it
        if not any(called_name(call) in CLIPPINGS for call in all_calls(one)):
            break
        group.append(one)
    file.insert_before(step, "\n".join(file.moved(one, step.col_offset) for one in group))
    for one in group:
        file.remove(one)
