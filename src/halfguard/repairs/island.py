"""Put a module in FP32, directly after the line that makes it, or one that holds it."""

from __future__ import annotations

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, assigned_target


@Repair
def island(file: SourceFile, line: int, path: str) -> None:
    """Make an FP32 island of the module at a path below what a line makes."""
    statement = file.statement_at(line)
    target = None if statement is None else assigned_target(statement)
    if statement is not None and target is not None:
        name, margin = file.source(target), " " * statement.col_offset
        module = f'{name}.get_submodule("{path}")' if path else name
        file.insert_after(statement, f"{margin}halfguard.fp32_island({module})")
