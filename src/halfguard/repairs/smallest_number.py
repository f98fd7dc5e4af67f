"""Write the smallest number of a dtype in place of a constant that does not fit it."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SIMPLE, SourceFile

_LARGE = 1e4  # a constant from here on is taken for a mask


def write_limit(file: SourceFile, value: ast.expr, dtype: str, *, lowest: bool) -> None:
    """Write the smallest or the largest number of a dtype in place of a constant."""
    file.replace(value, f"torch.finfo({dtype}).{'min' if lowest else 'max'}")


@Repair
def smallest_number(file: SourceFile, line: int, dtype: str) -> None:
    """Write the smallest number of a dtype for the masks of a statement."""
    statement = file.statement_at(line)
    if not isinstance(statement, SIMPLE):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.expr) and _is_far_below(node, file):
            write_limit(file, node, f"torch.{dtype}", lowest=True)


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
