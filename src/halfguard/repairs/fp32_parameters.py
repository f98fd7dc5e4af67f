"""Make what an optimizer trains FP32, directly after the statement that makes it."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile


@Repair
def fp32_parameters(file: SourceFile, line: int) -> None:
    """Convert the parameters of an optimizer, where a GradScaler needs FP32 weights."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    name, margin = file.source(statement.targets[0]), " " * statement.col_offset
    lines = (
        f"for group in {name}.param_groups:  # a GradScaler needs FP32 weights",
        '    for parameter in group["params"]:',
        "        parameter.data = parameter.data.float()",
    )
    file.insert_after(statement, "\n".join(margin + line for line in lines))
