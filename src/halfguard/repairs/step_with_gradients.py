"""Step an optimizer by the scaler only if one of its parameters has a gradient."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import stepped_optimizer
from halfguard.repairs.source_file import SourceFile


@Repair
def step_with_gradients(file: SourceFile, line: int) -> None:
    """Put the step of a line under a condition."""
    statement = file.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = stepped_optimizer(file, call) if isinstance(call, ast.Call) and call.args else ""
    if statement is not None and name:
        has = f'any(p.grad is not None for g in {name}.param_groups for p in g["params"])'
        file.indent(statement, f"if {has}:")
