"""Give something more to Accelerate's ``prepare``: an optimizer or a schedule that was left out."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, owner_of


@Repair
def add_to_prepare(file: SourceFile, line: int) -> None:
    """Prepare what is stepped on a line."""
    statement = file.statement_at(line)
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_step = isinstance(call, ast.Call) and called_name(call) == "step"
    name = owner_of(file, call) if is_step and isinstance(call, ast.Call) else ""
    for node in ast.walk(file.tree) if name else ():
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(value, ast.Call) or not isinstance(node, ast.Assign):
            continue
        given = [file.source(argument) for argument in value.args]
        if called_name(value) == "prepare" and name not in given and len(node.targets) == 1:
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            left = ", ".join([*map(file.source, names), name])
            function = file.source(value.func)
            file.replace(node, f"{left} = {function}({', '.join([*given, name])})")
            file.changed.append(node.lineno)
            return
