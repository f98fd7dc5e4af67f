"""Let a cross-entropy without any label be 0: a sum, divided by the number of labels or 1."""

from __future__ import annotations

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_at


@Repair
def divide_by_labels(file: SourceFile, line: int) -> None:
    """Divide a cross-entropy by the number of labels, or by 1."""
    calls = [
        c for c in calls_at(file, line) if called_name(c) == "cross_entropy" and len(c.args) == 2
    ]
    if not calls or {k.arg for k in calls[0].keywords} - {"ignore_index"}:
        return
    call = calls[0]
    ignored = next((file.source(k.value) for k in call.keywords), "-100")
    target = file.source(call.args[1])
    text = file.source(call)
    count = f"({target} != {ignored}).sum().clamp(min=1)"
    file.replace(call, f'({text[:-1].rstrip().rstrip(",")}, reduction="sum") / {count})')
