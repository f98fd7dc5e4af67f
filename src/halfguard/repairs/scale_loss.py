"""Scale the loss of a backward pass by the scaler that steps its optimizer."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, calls_of


@Repair
def scale_loss(file: SourceFile, line: int, scaler: str, *, instead: bool = False) -> None:
    """Scale a loss, or scale it by this scaler ``instead`` of another one."""
    for call in calls_of(file, line) if scaler else ():
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if instead and function.attr == "scale":
            file.replace(function.value, scaler)
            return
        if not instead and function.attr == "backward":
            file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
            return
