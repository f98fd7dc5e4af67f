"""Divide each ``torch.finfo(...).min`` of a function by 4, so that masks can be added."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name


@Repair
def smaller_masks(file: SourceFile, line: int) -> None:
    """Divide the smallest numbers of the function around a line."""
    for node in ast.walk(file.function_at(line) or file.tree):
        is_min = isinstance(node, ast.Attribute) and node.attr == "min"
        made = node.value if is_min and isinstance(node, ast.Attribute) else None
        if isinstance(made, ast.Call) and called_name(made) == "finfo":
            assert isinstance(node, ast.Attribute)  # noqa: S101
            file.replace(node, f"({file.source(node)} / 4)")
            file.changed.append(node.lineno)
    file.changed[:] = sorted(set(file.changed))
