"""Positions are counted in float16 or bfloat16, which have no odd number above 2048 and 256."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("arange(",),
    also_contains=("half", "float16"),
    needs_half=True,
)
_ANGLES = re.compile(r"\b(sin|cos|outer|einsum)\(|freq|angle|theta|rotary", re.I)
_POSITIONS = re.compile(r"seq|len|pos|max_|ctx|context|token", re.I)
_COUNTS = re.compile(r"\b(n|t|count|length)\b|shape\[(1|-2)\]|size\((1|-2)\)")
_NAMED = re.compile(r"rotary|rope|sinus|pos|angle|freq", re.I)  # functions that count positions
_WIDTH = re.compile(
    r"dim|half|head|channel|embed(?!ding)|width|feature|levels?\b|shape\[-1\]|size\(-1\)", re.I
)
_CASTS = {"to", "type", "type_as", "half", "bfloat16"}
_EXACT = {"float16": 2048, "bfloat16": 256}  # up to here each has every whole number


def check(file: PythonFile) -> Iterator[Match]:
    """Find ranges of whole numbers that are float16 or bfloat16."""
    for call in file.calls("arange"):
        if not file.is_torch_call(call) or not _computes_angles(file, call):
            continue
        outer = _cast_of(file, call)
        dtype = _dtype(file, outer)
        if dtype and _is_long(file, call, _EXACT[dtype]):
            message = f"{dtype} has no odd number above {_EXACT[dtype]}: positions collide."
            yield match_at(outer, message)


def _dtype(file: PythonFile, call: ast.Call) -> str:
    """Return the dtype of a range if it is float16 or, by a dtype or cast in this call, bfloat16."""
    if file.is_proven_half(call):
        return "float16"
    given = [file.assigned_value(a) for a in (*call.args, *(k.value for k in call.keywords))]
    named = any(file.full_name(a) == "torch.bfloat16" for a in given if a is not None)
    is_bfloat16 = (named or called_name(call) == "bfloat16") and not file.is_inference(call)
    return "bfloat16" if is_bfloat16 else ""


def _computes_angles(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the numbers are used as positions: the function has sines, frequencies or the like."""
    function = file.function_of(call)
    return function is not None and bool(_ANGLES.search(file.text(function)))


def _cast_of(file: PythonFile, call: ast.Call) -> ast.Call:
    """Return the cast around a range, or the range itself."""
    attribute = file.parents.get(call)
    outer = file.parents.get(attribute) if isinstance(attribute, ast.Attribute) else None
    is_cast = (
        isinstance(outer, ast.Call) and called_name(outer) in _CASTS and receiver(outer) is call
    )
    return outer if isinstance(outer, ast.Call) and is_cast else call


def _is_long(file: PythonFile, call: ast.Call, exact: int) -> bool:
    """Return whether the numbers are whole, and end above a limit or at a number of positions."""
    step = argument(call, 2, "step")
    if step is not None and file.constant(step) != 1:
        return False
    end = argument(call, -1, "end") or argument(call, min(1, len(call.args) - 1), "end")
    value = None if end is None else file.assigned_value(end)
    if value is None or end is None:
        return False
    last = file.constant(end)
    if last is not None:
        return last > exact
    texts = (ast.unparse(end), ast.unparse(value))
    if any(map(_WIDTH.search, texts)):
        return False
    function = file.function_of(call)
    is_named = function is not None and _NAMED.search(function.name)
    return any(_POSITIONS.search(t) or (is_named and _COUNTS.search(t)) for t in texts)
