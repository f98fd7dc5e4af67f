"""Let an iteration that is left by ``continue`` step and update the scaler."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, all_calls, called_name, calls_at, loops_around


@Repair
def update_before_continue(file: SourceFile, line: int, leaves: int = 0) -> None:
    """Step and update before a ``continue``, the first one after the line that scales the loss.

    A step whose gradients are unscaled was checked: it is skipped, as the author means it, and updated.
    """
    loop = next(reversed(loops_around(file.tree, line)), None)
    scales = [call for call in calls_at(file, line) if called_name(call) == "scale"]
    if loop is None or not scales or not isinstance(scales[0].func, ast.Attribute):
        return
    scaler = file.source(scales[0].func.value)
    inside = list(ast.walk(loop))
    steps = [
        n for n in inside if isinstance(n, ast.Call) and file.source(n.func) == f"{scaler}.step"
    ]
    inner = {
        id(node)
        for other in inside
        if isinstance(other, ast.For | ast.While) and other is not loop
        for node in ast.walk(other)
    }
    lines = [n for n in inside if isinstance(n, ast.Continue) and n.lineno > line]
    lines = [n for n in lines if id(n) not in inner]  # those go on with an inner loop
    lines = [n for n in lines if n.lineno >= leaves]
    if not steps or not lines or lines[0].lineno > steps[0].lineno:
        return
    block = file.block_of(lines[0])
    if any(file.source(c.func) == f"{scaler}.update" for one in block for c in all_calls(one)):
        return
    # In ``if bad: continue`` the calls share the line.
    gap = f"\n{' ' * lines[0].col_offset}" if file.is_alone(lines[0]) else "; "
    before = (n for n in inside if isinstance(n, ast.Call) and line < n.lineno < lines[0].lineno)
    checked = any(file.source(call.func) == f"{scaler}.unscale_" for call in before)
    step = [] if checked else [file.source(steps[0])]
    file.replace(lines[0], gap.join([*step, f"{scaler}.update()", "continue"]))
    file.changed.append(lines[0].lineno)
