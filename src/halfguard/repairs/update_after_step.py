"""Move ``scaler.update()`` to directly after the last ``scaler.step(optimizer)`` of its block."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import scaler_steps
from halfguard.repairs.source_file import SourceFile, called_name, owner_of


@Repair
def update_after_step(file: SourceFile, line: int) -> None:
    """Update the scaler after its step."""
    statement = file.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if statement is None or not isinstance(call, ast.Call) or called_name(call) != "update":
        return
    steps = scaler_steps(file, owner_of(file, call), file.function_at(line) or file.tree)
    block = file.block_of(steps[0]) if steps else []
    if not steps or any(all(step is not one for one in block) for step in steps):
        return  # the last one is not certain
    file.insert_after(steps[-1], file.moved(statement, steps[-1].col_offset))
    file.remove(statement)
