"""Keep numbers in FP32 where a line casts them to half: ``x.half()``, ``x.to(dtype)``."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_of

_WORDS = ("dtype", "half", "float16")


@Repair
def leave_out_cast(file: SourceFile, line: int) -> None:
    """Cast to FP32 instead, in every cast of the statement on a line."""
    for call in calls_of(file, line, "half", "bfloat16", "to"):
        given = [file.source(one) for one in (*call.args, *(k.value for k in call.keywords))]
        by_name = called_name(call) != "to" and not given
        by_dtype = len(given) == 1 and any(word in given[0] for word in _WORDS)
        if isinstance(call.func, ast.Attribute) and (by_name or by_dtype):
            file.replace(call, f"{file.source(call.func.value)}.float()")
