"""Cast the first argument of a call to FP32, where torch has no kernel for half."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, calls_of


@Repair
def call_in_fp32(file: SourceFile, line: int, kernel: str, index: int) -> None:
    """Cast the argument of one of the calls of a line: those of the kernel's own function come first."""
    calls = [call for call in calls_of(file, line) if call.args]
    calls.sort(key=lambda call: not kernel.startswith(_last_name(call)))
    if index < len(calls):
        given = calls[index].args[0]
        text = file.source(given)
        simple = isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        file.replace(given, f"{text}.float()" if simple else f"({text}).float()")


def _last_name(call: ast.Call) -> str:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name or "-"
