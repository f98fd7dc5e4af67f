"""A constant outside the range of float16 is written into a tensor that may be float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, name_of, receiver
from halfguard.lint.match import FixKind, Match, Meta, match_at
from halfguard.lint.numeric_checks import (
    LARGE_CONSTANTS,
    may_be_half,
    origin_of,
    overflows_half,
)
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile, is_name_or_attribute, make_fix, replace

META = Meta(
    contains=("masked_fill", "fill_(", "full(", "full_like("),
    pattern=LARGE_CONSTANTS,
    needs_half=True,
)
_FLOAT_OPERATIONS = ("softmax", "log_softmax", "sigmoid", "exp", "log", "matmul", "gumbel_softmax")
_INTEGER_NAMES = re.compile(
    r"(^|_)(ids?|idx|ind(ex|ices)|labels?|pos(itions?)?|len(gths?)?|tokens?)(_|$)"
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find constants in calls that write them into a tensor."""
    for call in file.calls("masked_fill", "masked_fill_", "fill_"):
        found = _fill_arguments(file, call)
        if found and may_be_half(file, found[0]) and not _has_integer_name(found[0]):
            yield from _match(file, found[0], found[1])
    for call in file.calls("full", "full_like", "new_full"):
        yield from _check_creation(file, call)


def _fill_arguments(file: PythonFile, call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """Return the tensor and the value of a call that fills a tensor."""
    owner, offset = receiver(call), 0
    if owner is not None and file.full_name(owner) == "torch":
        owner, offset = argument(call, 0, "input"), 1
    value = argument(call, offset + (called_name(call) != "fill_"), "value")
    return (owner, value) if owner is not None and value is not None else None


def _check_creation(file: PythonFile, call: ast.Call) -> Iterator[Match]:
    value = argument(call, 1, "fill_value")
    dtype = argument(call, -1, "dtype")
    like = {"full_like": argument(call, 0, "input"), "new_full": receiver(call)}
    source = like.get(called_name(call))
    if dtype is not None:
        # A dtype in a variable may be the model's; a literal such as ``torch.float32`` is known.
        is_literal = file.full_name(dtype).startswith("torch.")
        if file.dtype_precision(dtype) is Precision.HALF or not (
            is_literal or isinstance(dtype, ast.Constant)
        ):
            yield from _match(file, None, value)
    elif source is not None and may_be_half(file, source) and not _has_integer_name(source):
        yield from _match(file, source, value)


def _match(file: PythonFile, tensor: ast.expr | None, value: ast.expr | None) -> Iterator[Match]:
    number = file.constant(value)
    if value is None or number is None or not overflows_half(number):
        return
    fix = None
    if tensor is not None and is_name_or_attribute(tensor):
        text = f"torch.finfo({file.text(tensor)}.dtype).{'min' if number < 0 else 'max'}"
        kind: FixKind = "safe" if _is_floating(file, tensor) else "unsafe"
        fix = make_fix(kind, replace(file, value, text), imports=("torch",))
    message = f"{file.text(value)} does not fit into float16, whose largest value is 65504."
    yield match_at(value, message, fix)


def _is_floating(file: PythonFile, tensor: ast.expr) -> bool:
    """Return whether a tensor is cast to, computed as or later used as floating-point values."""
    if file.precision(tensor) in {Precision.HALF, Precision.FULL}:
        return True
    origin = origin_of(file, tensor)
    if isinstance(origin, ast.BinOp) and isinstance(origin.op, ast.MatMult | ast.Div):
        return True
    name, function = name_of(tensor), file.function_of(tensor)
    for call in file.calls(*_FLOAT_OPERATIONS):
        used = file.tensor_of(call) if file.function_of(call) is function else None
        if used is not None and any(name_of(part) == name for part in ast.walk(used)):
            return True
    return False


def _has_integer_name(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(_INTEGER_NAMES.search(name))
