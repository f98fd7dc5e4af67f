"""Zero the gradients directly after the step that has used them, or after the update of its scaler."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import are_free_after, stepped_optimizer
from halfguard.repairs.source_file import SourceFile, all_calls, owner_of


@Repair
def zero_gradients(file: SourceFile, line: int) -> None:
    """Zero the gradients after a step."""
    stepping = file.statement_at(line)
    call = stepping.value if isinstance(stepping, ast.Expr) else None
    if stepping is None or not isinstance(call, ast.Call):
        return
    optimizer = stepped_optimizer(file, call)
    if not optimizer or not are_free_after(file, stepping, optimizer):
        return
    block = file.block_of(stepping)
    at = next(index for index, other in enumerate(block) if other is stepping)
    after = block[at + 1] if at + 1 < len(block) else None
    updates = [] if after is None else list(all_calls(after))
    is_update = [file.source(c) for c in updates] == [f"{owner_of(file, call)}.update()"]
    last = after if after is not None and is_update else stepping
    file.insert_after(last, f"{' ' * stepping.col_offset}{optimizer}.zero_grad()")
