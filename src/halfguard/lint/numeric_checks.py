"""Checks that the rules about constants and numerics share: limits of float16, tensors, logarithms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from halfguard.formats import FP16
from halfguard.lint.conditions import is_for_full_precision
from halfguard.lint.expressions import argument, called_name, name_of, number, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

OVERFLOW = FP16.overflow_threshold  # the smallest magnitude that rounds to infinity
UNDERFLOW = FP16.underflow_threshold  # the largest magnitude that rounds to zero

# Spellings of constants that float16 cannot hold. A file without any of them is not parsed. All of them begin
# with one class of characters, because re skips the others quickly.
LARGE_CONSTANTS = (
    r"[\d.f](?:(?<!f)[eE]\+?0?(?:[4-9]|[1-3]\d)\b|(?<=\d)\d{4}|(?<=\d)\d?_\d{3}|(?<=\d) ?\*\* ?\d"
    r"|(?<=f)info\(torch\.float(?:32)?\b)"
)
SMALL_CONSTANTS = r"[eE]-(?:0?[89]|[1-3]\d)\b|\*\* ?-|\.0{6}"

_TENSOR_METHODS = {
    "abs", "clamp", "clip", "cumsum", "exp", "log", "matmul", "mean", "norm", "pow", "sigmoid",
    "softmax", "sqrt", "square", "std", "sum", "tanh", "unsqueeze", "var", "bmm", "amax", "amin",
}  # fmt: skip


def overflows_half(value: float | None) -> bool:
    """Return whether a finite constant becomes infinite in float16."""
    return value is not None and OVERFLOW <= abs(value) < float("inf")


def underflows_half(value: float | None) -> bool:
    """Return whether a positive constant becomes zero in float16."""
    return value is not None and 0 < value <= UNDERFLOW


@dataclass(frozen=True)
class Logarithm:
    """A call ``log(x)``: where ``x`` was computed, and what was done to it in between."""

    call: ast.Call
    operand: ast.expr  # the argument, without an eps and without ``1 -``
    origin: ast.expr  # the expression that computed the operand, through assignments and views
    has_eps: bool  # an eps that underflows was added
    complement: bool  # log(1 - x)


def find_logarithms(file: PythonFile) -> Iterator[Logarithm]:
    """Yield every logarithm of a tensor: ``torch.log(x)`` and ``x.log()``."""
    for call in file.calls("log"):
        inner: ast.expr | None = receiver(call) if not call.args else None
        if file.full_name(call.func) == "torch.log":
            inner = argument(call, 0, "input")
        if inner is None or is_reference_code(file, call):
            continue
        operand = assigned_sum(file, inner)
        has_eps = complement = False
        if isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Add):
            for side, other in (
                (operand.left, operand.right),
                (operand.right, operand.left),
            ):
                if underflows_half(file.constant(other)):
                    operand, has_eps = side, True
                    break
        if _is_complement(operand):
            operand, complement = operand.right, True
        yield Logarithm(call, operand, origin_of(file, operand), has_eps, complement)


def _is_complement(node: ast.expr) -> TypeGuard[ast.BinOp]:
    """Return whether an expression is ``1 - x``."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and number(node.left) == 1


def assigned_sum(file: PythonFile, node: ast.expr) -> ast.expr:
    """Return the sum or difference behind a variable; other expressions as they are."""
    value = file.assigned_value(node)
    return value if isinstance(value, ast.BinOp) else node


_VIEWS = {
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "contiguous", "clone", "transpose", "permute", "t",
    "gather", "index_select", "expand", "expand_as", "view_as", "narrow", "select", "cpu", "cuda", "detach",
}  # fmt: skip


def origin_of(file: PythonFile, node: ast.expr) -> ast.expr:
    """Return the expression that computed a value, through assignments, subscripts and views."""
    for _ in range(8):
        if isinstance(node, ast.Name):
            assigned = file.last_assignment(node)
            if assigned is None or assigned.value is None:
                return node
            node = assigned.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and called_name(node) in _VIEWS:
            source = file.tensor_of(node)
            if source is None:
                return node
            node = source
        else:
            return node
    return node


def origin_is_view(file: PythonFile, log: Logarithm) -> bool:
    """Return whether a view or a selection lies between a logarithm's operand and its origin."""
    value = file.assigned_value(log.operand)
    return value is not log.origin


def can_be_repeated(file: PythonFile, node: ast.expr, place: ast.Call) -> bool:
    """Return whether an expression has the same value when it is written again at a later place.

    It must hold only names that are not assigned in between, and be in the same function.
    """
    if file.function_of(node) is not file.function_of(place) or node.lineno != node.end_lineno:
        return False
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and called_name(part) not in {"softmax"}:
            return False
        name = name_of(part)
        changes = file.assignments.get(name, ()) if name else ()
        if any(node.lineno <= a.line <= place.lineno for a in changes):
            return False
    return True


def module_class(file: PythonFile, call: ast.Call) -> str:
    """Return the class whose instance a call runs: the last one of a ``Sequential``; empty if not known."""
    made: ast.expr | None = call.func
    for _ in range(4):
        if isinstance(made, ast.Name | ast.Attribute):
            assigned = file.last_assignment(made)
            made = assigned.value if assigned else None
        elif isinstance(made, ast.Call) and called_name(made) == "Sequential" and made.args:
            made = made.args[-1]
        else:
            break
    return called_name(made) if isinstance(made, ast.Call) and made is not call else ""


def is_tensor(file: PythonFile, node: ast.AST, depth: int = 0) -> bool:
    """Return whether an expression is certainly a tensor: a torch call, or a tensor method."""
    if depth > 6:
        return False
    if isinstance(node, ast.Call):
        if file.is_torch_call(node):
            return True
        owner = receiver(node)
        if owner is None or file.full_name(node.func).partition(".")[0] in {"numpy", "math", "jax"}:
            return False
        has_dim = any(k.arg in {"dim", "keepdim"} for k in node.keywords)
        return called_name(node) in _TENSOR_METHODS and (
            has_dim or is_tensor(file, owner, depth + 1)
        )
    if isinstance(node, ast.BinOp):
        return is_tensor(file, node.left, depth + 1) or is_tensor(file, node.right, depth + 1)
    if isinstance(node, ast.Subscript | ast.UnaryOp):
        inner = node.value if isinstance(node, ast.Subscript) else node.operand
        return is_tensor(file, inner, depth + 1)
    if isinstance(node, ast.Name):
        assigned = file.last_assignment(node)
        return bool(assigned and assigned.value and is_tensor(file, assigned.value, depth + 1))
    return False


def may_be_half(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a value is float16, or may be so: the project is not known, or its weights are."""
    return _may_be_half(file, node) and not is_for_full_precision(file, node)


def _may_be_half(file: PythonFile, node: ast.AST) -> bool:
    known = file.precision(node)
    if known is not Precision.MAYBE:
        return known is Precision.HALF and not file.is_inference(node)
    region = file.autocast.around(node)
    if region is not None and region.enabled is False:
        return False  # its author has already thought about precision
    project = file.project
    return not project.known or (
        project.half_weights and not project.mixed and file.is_model_code(node)
    )


def is_certainly_half(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a value is float16, or is in a float16 autocast block of this file."""
    known = file.precision(node)
    region = file.autocast.around(node)
    inside = region is not None and region.is_half and not file.is_inference(node)
    half = known is Precision.HALF or (known is Precision.MAYBE and inside)
    return half and not is_for_full_precision(file, node)


def is_model_value(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a value is certainly float16, or a tensor inside an ``nn.Module``."""
    if is_certainly_half(file, node):
        return True
    return is_tensor(file, node) and file.roles.is_in_nn_module(node)


def is_reference_code(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a node is in code named a reference, which is simple on purpose."""
    for parent in file.ancestors(node):
        name = getattr(parent, "name", None) or getattr(parent, "arg", None)
        if isinstance(name, str) and ("reference" in name or name.lstrip("_").startswith("ref_")):
            return True
    return False


def functional_prefix(file: PythonFile) -> str:
    """Return the name under which this file imports ``torch.nn.functional``."""
    names = [name for name, full in file.aliases.items() if full == "torch.nn.functional"]
    return names[0] if names else "torch.nn.functional"


def imports_for(prefix: str) -> tuple[str, ...]:
    """Return the modules to import for code that begins with this prefix."""
    return ("torch",) if prefix.startswith("torch") else ()


_FUNCTIONS = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")


@dataclass(frozen=True)
class SmallTerm:
    """A sum ``rest + eps``; ``certain`` if it is the operand of a function that only tensors have."""

    node: ast.BinOp
    eps: ast.expr
    rest: ast.expr
    certain: bool


def find_small_terms(file: PythonFile) -> Iterator[SmallTerm]:
    """Yield sums in a logarithm, a root or a divisor."""
    for call in file.calls(*_FUNCTIONS):
        inner = argument(call, 0, "input") if file.is_torch_call(call) else receiver(call)
        # Only tensors have these methods, and they take no arguments.
        if inner is not None and (file.is_torch_call(call) or not call.args):
            yield from _terms(file, assigned_sum(file, inner), certain=True)
    for node in file.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield from _terms(file, assigned_sum(file, node.right), certain=False)


def _terms(file: PythonFile, node: ast.AST | None, *, certain: bool) -> Iterator[SmallTerm]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return
    for eps, rest in ((node.right, node.left), (node.left, node.right)):
        if underflows_half(file.constant(eps)):
            yield SmallTerm(node, eps, rest, certain)
