"""Divide gradients that become a part of another loss by the scale that they were multiplied with."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, calls_of, owner_of


@Repair
def unscale_penalty(file: SourceFile, line: int) -> None:
    """Unscale the gradients of a penalty."""
    statement, scales = file.statement_at(line), calls_of(file, line, "scale")
    if not isinstance(statement, ast.Assign) or not scales:
        return
    value, scaler = statement.value, owner_of(file, scales[0])
    if isinstance(value, ast.Subscript):
        file.append(value, f" / {scaler}.get_scale()")
    elif isinstance(statement.targets[0], ast.Tuple) and len(statement.targets[0].elts) == 1:
        file.replace(value, f"({file.source(value)}[0] / {scaler}.get_scale(),)")
    else:
        file.replace(value, f"[g / {scaler}.get_scale() for g in {file.source(value)}]")
