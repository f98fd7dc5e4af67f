"""Divide the loss of a backward pass by the number of passes before a step: that of a range."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, all_calls, called_name, calls_of, loop_at


@Repair
def loss_per_micro_batch(file: SourceFile, line: int) -> None:
    """Divide each loss by the number of micro-batches."""
    backward = [c for c in calls_of(file, line, "backward") if not c.args]
    loop = loop_at(file, line)
    if len(backward) != 1 or not isinstance(loop, ast.For):
        return
    count, function = loop.iter, backward[0].func
    steps = any(called_name(call) == "step" for call in all_calls(loop))
    if steps or not isinstance(count, ast.Call) or called_name(count) != "range":
        return
    if len(count.args) == 1 and isinstance(function, ast.Attribute):
        number = file.source(count.args[0])
        file.replace(function.value, f"({file.source(function.value)} / {number})")
