"""`BCELoss` runs under autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, receiver
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.numeric_checks import module_class
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    contains=("binary_cross_entropy", "BCELoss"),
    also_contains=("autocast",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find binary cross-entropy inside autocast regions."""
    for call in file.calls("binary_cross_entropy"):
        if _is_under_autocast(file, call):
            yield match_at(call, "binary_cross_entropy is unsafe under autocast.", _fix(file, call))
    for variable in file.constructed("BCELoss"):
        for call in file.calls_of(variable):
            # Another function may use the same name for another loss.
            if module_class(file, call) == "BCELoss" and _is_under_autocast(file, call):
                yield match_at(call, f"{variable} is a BCELoss, which is unsafe under autocast.")


def _is_under_autocast(file: PythonFile, call: ast.Call) -> bool:
    region = file.autocast.around(call)
    if region is None or region.enabled is False:
        return False
    if file.is_inference(call):
        return False
    return not call.args or file.precision(call.args[0]) is not Precision.FULL


def _fix(file: PythonFile, call: ast.Call) -> Fix | None:
    first = argument(call, 0, "input")
    if not isinstance(first, ast.Call) or called_name(first) != "sigmoid":
        return None
    inner = argument(first, 0, "input") if first.args else receiver(first)
    if inner is None or argument(call, 2, "weight") is not None:
        return None
    renamed = replace(file, call.func, f"{file.text(call.func)}_with_logits")
    return make_fix("safe", renamed, replace(file, first, file.text(inner)))
