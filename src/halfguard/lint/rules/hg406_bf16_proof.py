"""`is_bf16_supported()` is used as proof of BF16 hardware."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import has_keyword, name_of
from halfguard.lint.match import Edit, Fix, Match, Meta, Span, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("is_bf16_supported",),
)


def _is_negated(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is under ``not``, where it is right to count emulation."""
    for parent in file.ancestors(call):
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            return True
        if isinstance(parent, ast.stmt):
            return False
    return False


def _chooses(file: PythonFile, call: ast.Call) -> bool:
    """Return whether BF16 is used because of the answer, and it is not only printed or logged."""
    for parent in file.ancestors(call):
        if isinstance(parent, ast.IfExp):
            return "bf" in ast.unparse(parent.body).lower()
        if isinstance(parent, ast.If):
            return any(
                isinstance(s, ast.Assign | ast.Return) and "bf" in ast.unparse(s).lower()
                for s in parent.body
            )
        if isinstance(parent, ast.Assign):
            return any(re.search("bf|dtype", name_of(t), re.I) for t in parent.targets)
        if isinstance(parent, ast.stmt):
            return isinstance(parent, ast.Return)
    return False


def check(file: PythonFile) -> Iterator[Match]:
    """Find calls that count emulation."""
    if file.project.needs_ampere:
        return
    for call in file.calls("is_bf16_supported"):
        if not file.full_name(call.func).startswith("torch.cuda") or _is_negated(file, call):
            continue
        if not _chooses(file, call):
            continue
        if not call.args and not has_keyword(call, "including_emulation"):
            line, column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
            edit = Edit(Span(line, column, line, column), "including_emulation=False")
            message = "This counts emulation: it returns True on GPUs without BF16."
            yield match_at(call, message, Fix("unsafe", (edit,)))
