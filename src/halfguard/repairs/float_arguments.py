"""Cast what is passed to a module to FP32, if half numbers met FP32 weights there."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, calls_of

_HALF_FIRST = ("got Half and Float", "got BFloat16 and Float", "Input type (c10::Half) and",
               "Input type (c10::BFloat16) and")  # fmt: skip


@Repair
def float_arguments(file: SourceFile, line: int, error: str) -> None:
    """Cast the argument of a module that an error names to FP32."""
    if not any(text in error for text in _HALF_FIRST):
        return
    for call in calls_of(file, line):
        named = isinstance(call.func, ast.Name | ast.Attribute)
        names = [one for one in call.args if isinstance(one, ast.Name | ast.Attribute)]
        if named and len(call.args) == 1 and names and not call.keywords:
            file.replace(names[0], f"{file.source(names[0])}.float()")
            return
