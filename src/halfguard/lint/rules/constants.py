"""Constants that float16 cannot hold: masks beyond 65504, and an eps that is zero."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.formats import FP16
from halfguard.lint.expressions import argument, called_name, name_of, receiver
from halfguard.lint.match import Fix, FixKind, Match, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile, is_name_or_attribute
from halfguard.lint.rule import rule
from halfguard.lint.values import origin_of
from halfguard.repairs.masks import write_limit

OVERFLOW = FP16.overflow_threshold  # the smallest magnitude that rounds to infinity
UNDERFLOW = FP16.underflow_threshold  # the largest magnitude that rounds to zero

# Spellings of constants that float16 cannot hold. A file without any of them is not parsed. All of them begin
# with one class of characters, because re skips the others quickly.
LARGE_CONSTANTS = (
    r"[\d.f](?:(?<!f)[eE]\+?0?(?:[4-9]|[1-3]\d)\b|(?<=\d)\d{4}|(?<=\d)\d?_\d{3}|(?<=\d) ?\*\* ?\d"
    r"|(?<=f)info\(torch\.float(?:32)?\b)"
)
SMALL_CONSTANTS = r"[eE]-(?:0?[89]|[1-3]\d)\b|\*\* ?-|\.0{6}"
_FLOAT_OPERATIONS = ("softmax", "log_softmax", "sigmoid", "exp", "log", "matmul", "gumbel_softmax")
_INTEGER_NAMES = re.compile(
    r"(^|_)(ids?|idx|ind(ex|ices)|labels?|pos(itions?)?|len(gths?)?|tokens?)(_|$)"
)


def underflows_half(value: float | None) -> bool:
    """Return whether a positive constant becomes zero in float16."""
    return value is not None and 0 < value <= UNDERFLOW


@rule(
    "HG101", "masked_fill", "fill_(", "full(", "full_like(", pattern=LARGE_CONSTANTS, in_half=True
)
def check_masks(file: PythonFile) -> Iterator[Match]:
    """Find constants in calls that write them into a tensor that is float16."""
    for call in file.calls("masked_fill", "masked_fill_", "fill_"):
        owner, offset = receiver(call), 0
        if owner is not None and file.full_name(owner) == "torch":
            owner, offset = argument(call, 0, "input"), 1
        value = argument(call, offset + (called_name(call) != "fill_"), "value")
        if owner is not None and _may_hold(file, owner):
            yield from _match(file, owner, value)
    for call in file.calls("full", "full_like", "new_full"):
        value, dtype = argument(call, 1, "fill_value"), argument(call, -1, "dtype")
        sources = {"full_like": argument(call, 0, "input"), "new_full": receiver(call)}
        source = sources.get(called_name(call))
        if dtype is not None:
            # A dtype in a variable may be the model's; another library's, or a literal, is known.
            root = file.full_name(dtype).partition(".")[0]
            is_known = root in {"torch", "numpy", "np"} or isinstance(
                dtype, ast.Constant | ast.Call
            )
            is_model = not is_known and (
                file.project.lone or file.project.may_call_in_half(file.path)
            )
            is_half = file.dtype_precision(dtype) is Precision.HALF or is_model
            if is_half and (file.is_torch_call(call) or source is not None):
                yield from _match(file, None, value)
        elif source is not None and _may_hold(file, source):
            yield from _match(file, source, value)


def _may_hold(file: PythonFile, tensor: ast.expr) -> bool:
    name = tensor.attr if isinstance(tensor, ast.Attribute) else getattr(tensor, "id", "")
    return file.may_be_half(tensor) and not _INTEGER_NAMES.search(name)


def _match(file: PythonFile, tensor: ast.expr | None, value: ast.expr | None) -> Iterator[Match]:
    number = file.constant(value)
    if value is None or number is None or not OVERFLOW <= abs(number) < float("inf"):
        return
    fix: Fix | None = None
    if tensor is not None and is_name_or_attribute(tensor):
        kind: FixKind = "safe" if _is_floating(file, tensor) else "unsafe"
        dtype = f"{file.text(tensor)}.dtype"
        fix = file.fix(kind, lambda source: write_limit(source, value, dtype, lowest=number < 0))
    message = f"{file.text(value)} is outside the float16 range, whose largest value is 65504."
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


@rule("HG119", ".half(", "torch.float16", "torch.half", pattern=SMALL_CONSTANTS, in_half=True)
def check_eps(file: PythonFile) -> Iterator[Match]:
    """Find constants that are zero in the dtype that they are added to, before log, root or division."""
    for call in file.calls("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal"):
        # Only tensors have these methods, and they take no arguments.
        if file.is_torch_call(call) or not call.args:
            yield from _zero_terms(file, file.tensor_of(call))
    for node in file.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield from _zero_terms(file, node.right)


def _zero_terms(file: PythonFile, node: ast.AST | None) -> Iterator[Match]:
    total = file.assigned_value(node)
    if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add):
        return
    for eps, rest in ((total.right, total.left), (total.left, total.right)):
        if underflows_half(file.constant(eps)) and file.is_half(rest):
            yield match_at(eps, f"{file.text(eps)} is 0 in float16, so it has no effect here.")
