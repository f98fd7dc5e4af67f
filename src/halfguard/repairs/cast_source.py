"""Cast what is written into a tensor to its dtype: ``target.index_add_(0, index, source)``."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_of, owner_of

_WRITERS = ("index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce", "index_put")


@Repair
def cast_source(file: SourceFile, line: int) -> None:
    """Cast the last tensor that a writing call on a line is given."""
    found = [call for call in calls_of(file, line) if called_name(call).rstrip("_") in _WRITERS]
    if len(found) != 1:
        return
    call, target = found[0], owner_of(file, found[0])
    at = 1 if called_name(call).startswith("index_put") else 2
    source = call.args[at] if len(call.args) > at else None
    source = next((k.value for k in call.keywords if k.arg in ("src", "source", "values")), source)
    if target.isidentifier() and isinstance(source, ast.expr):
        text = file.source(source)
        simple = isinstance(source, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        file.replace(source, f"{text if simple else f'({text})'}.to({target}.dtype)")
