"""Patches of constants and reductions: masks that do not fit half, and a mean over no label."""

from __future__ import annotations

import ast

from halfguard.investigation.passes import Place
from halfguard.investigation.source_nodes import called_name, calls_at, read_statement
from halfguard.replaying.own_lines import SIMPLE
from halfguard.replaying.source_edits import SourceFile

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
