"""Patches of numbers: masks that do not fit half, a mean over no label, a cast that rounds whole numbers."""

from __future__ import annotations

import ast

from halfguard.investigation.passes import Place
from halfguard.replaying.source_edits import (
    SIMPLE,
    SourceFile,
    all_calls,
    called_name,
    calls_at,
    read_statement,
)

_HALF = ("float16", "half", "bfloat16")
_CASTS = ("to", "half", "bfloat16", "type", "type_as")
_MOVES = ("to", "cuda", "unsqueeze", "view", "reshape", "expand", "contiguous")
_WHOLE = ast.Add | ast.Sub | ast.Mult | ast.FloorDiv


def keep_integers(place: Place) -> str:
    """Cast the whole numbers of a statement to FP32; empty if it is not certain which cast is theirs."""
    file, statement = read_statement(place)
    if file is None or statement is None:
        return ""
    casts = [call for call in all_calls(statement) if called_name(call) in _CASTS]
    counts = [call for call in casts if _is_count(file, _receiver(call))]
    theirs = [call for call in counts if _dtype(file, call) is not None] if counts else casts
    dtype = _dtype(file, theirs[0]) if len(theirs) == 1 else None
    owner = _receiver(theirs[0]) if dtype is not None else None
    if dtype is None or owner is None:
        return ""
    if dtype is theirs[0] or len(_given(theirs[0])) == 1:
        file.replace(theirs[0], f"{file.source(owner)}.float()")
    else:
        file.replace(dtype, "torch.float32")
    return file.patch()


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


_LARGE = 1e4  # a constant from here on is taken for a mask


def write_smallest_number(place: Place, dtype: str) -> str:
    """Write the smallest number of a dtype in place of a constant that does not fit it."""
    file, statement = read_statement(place)
    if file is None or not isinstance(statement, SIMPLE):
        return ""
    for node in ast.walk(statement):
        if isinstance(node, ast.expr) and _is_far_below(node, file):
            file.replace(node, f"torch.finfo(torch.{dtype}).min")
    return file.patch()


def divide_smallest_numbers(place: Place) -> tuple[str, list[int]]:
    """Divide each ``torch.finfo(...).min`` of the function by 4, so that masks can be added; return lines."""
    file = SourceFile.read(place[0])
    scope = None if file is None else file.function_at(place[1]) or file.tree
    if file is None or scope is None:
        return "", []
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Attribute)
        and node.attr == "min"
        and isinstance(node.value, ast.Call)
        and called_name(node.value) == "finfo"
    ]
    for node in found:
        file.replace(node, f"({file.source(node)} / 4)")
    return file.patch(), sorted({node.lineno for node in found})


def divide_by_labels(place: Place) -> str:
    """Let a cross-entropy without any label be 0: a sum, divided by the number of labels or 1."""
    file = SourceFile.read(place[0])
    found = [] if file is None else calls_at(file, place[1])
    calls = [call for call in found if called_name(call) == "cross_entropy" and len(call.args) == 2]
    if file is None or not calls or {k.arg for k in calls[0].keywords} - {"ignore_index"}:
        return ""
    call = calls[0]
    ignored = next((file.source(k.value) for k in call.keywords), "-100")
    target = file.source(call.args[1])
    text = file.source(call)
    count = f"({target} != {ignored}).sum().clamp(min=1)"
    file.replace(call, f'({text[:-1].rstrip().rstrip(",")}, reduction="sum") / {count})')
    return file.patch()


def _is_far_below(node: ast.expr, file: SourceFile) -> bool:
    text = file.source(node).replace(" ", "").replace("'", '"')
    if text in ('float("-inf")', "-torch.inf", "-math.inf", "-np.inf", '-float("inf")'):
        return True
    number = (
        node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None
    )
    if not isinstance(number, ast.Constant) or not isinstance(number.value, int | float):
        return False
    return number.value > _LARGE
