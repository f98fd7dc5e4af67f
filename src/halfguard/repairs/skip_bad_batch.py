"""Go on with the next batch if a loss is not finite, instead of a line that makes such a loss finite."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, loop_at


@Repair
def skip_bad_batch(file: SourceFile, line: int) -> None:
    """Leave a batch out instead of hiding its NaN."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Assign) or loop_at(file, line) is None:
        return
    target, call = statement.targets[0], statement.value
    given = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if isinstance(target, ast.Name) and isinstance(given, ast.Name) and given.id == target.id:
        margin = " " * statement.col_offset
        file.replace(statement, f"if not torch.isfinite({target.id}):\n{margin}    continue")
