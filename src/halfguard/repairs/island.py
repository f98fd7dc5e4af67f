"""Put a module in FP32, directly after the line that makes it, or one that holds it."""

from __future__ import annotations

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, assigned_target


@Repair
def island(file: SourceFile, line: int, path: str) -> None:
    """Make an FP32 island of the module at a path below what a line makes; ``*`` is every layer of a list."""
    statement = file.statement_at(line)
    target = None if statement is None else assigned_target(statement)
    if statement is not None and target is not None:
        name, margin = file.source(target), " " * statement.col_offset
        above, star, below = path.partition("*")
        if star:
            layers = f'{name}.get_submodule("{above.rstrip(".")}")' if above else name
            inner = f'layer.get_submodule("{below.lstrip(".")}")' if below else "layer"
            file.insert_after(statement, f"{margin}for layer in {layers}:")
            file.insert_after(statement, f"{margin}    halfguard.fp32_island({inner})")
            return
        module = f'{name}.get_submodule("{path}")' if path else name
        file.insert_after(statement, f"{margin}halfguard.fp32_island({module})")
