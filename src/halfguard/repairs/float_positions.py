"""Cast whole numbers, such as positions, to FP32 instead of half."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_of

_HALF = ("float16", "half", "bfloat16")
_CASTS = ("to", "half", "bfloat16", "type", "type_as")
_MOVES = ("to", "cuda", "unsqueeze", "view", "reshape", "expand", "contiguous")
_WHOLE = ast.Add | ast.Sub | ast.Mult | ast.FloorDiv


@Repair
def float_positions(file: SourceFile, line: int) -> None:
    """Cast the whole numbers of a statement to FP32, if it is certain which cast is theirs."""
    casts = calls_of(file, line, *_CASTS)
    counts = [call for call in casts if _is_count(file, _receiver(call))]
    theirs = [call for call in counts if _dtype(file, call) is not None] if counts else casts
    dtype = _dtype(file, theirs[0]) if len(theirs) == 1 else None
    owner = _receiver(theirs[0]) if dtype is not None else None
    if dtype is None or owner is None:
        return
    if dtype is theirs[0] or len(_given(theirs[0])) == 1:
        file.replace(theirs[0], f"{file.source(owner)}.float()")
    else:
        file.replace(dtype, "torch.float32")


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _dtype(file: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the dtype that a cast is given, or the cast itself if it is named by its dtype."""
    if called_name(call) in _HALF:
        return call
    found = []
    for one in _given(call):
        is_name = isinstance(one, ast.Name | ast.Attribute)
        name = file.source(one).rsplit(".", maxsplit=1)[-1] if is_name else ""
        if "dtype" in name or name in _HALF:
            found.append(one)
    return found[0] if called_name(call) == "to" and len(found) == 1 else None


def _is_count(file: SourceFile, node: ast.expr | None) -> bool:
    """Return whether an expression is surely a row of whole numbers, such as ``torch.arange(n)``."""
    if isinstance(node, ast.Call) and called_name(node) == "arange":
        return all(keyword.arg != "dtype" for keyword in node.keywords)
    if isinstance(node, ast.Call) and called_name(node) in _MOVES:
        return _dtype(file, node) is None and _is_count(file, _receiver(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, _WHOLE):
        return _is_count(file, node.left) or _is_count(file, node.right)
    value = file.assigned(node.id, node.lineno) if isinstance(node, ast.Name) else None
    return value is not None and _is_count(file, value)
