"""Unscale the gradients before they are clipped, once per step; Accelerate's own clipping does so itself."""

from __future__ import annotations

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import steps_around
from halfguard.repairs.source_file import SourceFile, all_calls, called_name, calls_of, owner_of


@Repair
def unscale_before_clipping(file: SourceFile, line: int) -> None:
    """Unscale before the first clipping of a step."""
    statement = file.statement_at(line)
    if statement is None:
        return
    prepare = next((c for c in file.calls if called_name(c) == "prepare"), None)
    clips = [c for c in calls_of(file, line) if called_name(c).startswith("clip_grad_")]
    if prepare is not None and owner_of(file, prepare) and clips:
        file.replace(clips[0].func, f"{owner_of(file, prepare)}.{called_name(clips[0])}")
        return
    for step in steps_around(file, statement.lineno):
        if step.args and step.lineno > statement.lineno:
            call = f"{owner_of(file, step)}.unscale_({file.source(step.args[0])})"
            if not _is_written(file, line, call):
                file.insert_before(statement, f"{' ' * statement.col_offset}{call}")
            return


def _is_written(file: SourceFile, line: int, call: str) -> bool:
    """Return whether the same call already follows the last backward pass before a line."""
    scope = file.function_at(line) or file.tree
    before = sorted((c for c in all_calls(scope) if c.lineno < line), key=lambda c: c.lineno)
    for one in reversed(before):
        if called_name(one) == "backward":
            return False
        if file.source(one) == call:
            return True
    return False
