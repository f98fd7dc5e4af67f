"""Load the state of a scaler only if there is one."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name


@Repair
def load_if_not_empty(file: SourceFile, line: int) -> None:
    """Load a state only if it is not empty."""
    statement = file.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if statement is None or not isinstance(call, ast.Call) or len(call.args) != 1:
        return
    state = call.args[0]
    simple = isinstance(state, ast.Name | ast.Subscript | ast.Attribute)
    if called_name(call) == "load_state_dict" and simple:
        file.indent(statement, f"if {file.source(state)}:")
