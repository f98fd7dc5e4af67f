"""Move a schedule only if the scaler has not skipped the step: the scale has not fallen."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import steps_around
from halfguard.repairs.source_file import SourceFile, owner_of


@Repair
def schedule_after_step(file: SourceFile, line: int) -> None:
    """Move a schedule with the steps that were applied."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return
    before = [
        c for c in steps_around(file, statement.lineno) if c.args and c.lineno < statement.lineno
    ]
    step = file.statement_at(before[-1].lineno) if before else None
    if step is None:
        return
    scaler = owner_of(file, before[-1])
    updates = [c for c in file.calls if file.source(c.func) == f"{scaler}.update"]
    if any(step.lineno < c.lineno < statement.lineno for c in updates):
        margin = " " * step.col_offset
        file.insert_before(step, f"{margin}scale_before = {scaler}.get_scale()")
        file.indent(statement, f"if {scaler}.get_scale() >= scale_before:")
