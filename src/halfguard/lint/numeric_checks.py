"""Checks that the rules about constants and numerics share: limits of float16, tensors, logarithms."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.formats import FP16
from halfguard.lint.expressions import argument, called_name, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

OVERFLOW = FP16.overflow_threshold  # the smallest magnitude that rounds to infinity
UNDERFLOW = FP16.underflow_threshold  # the largest magnitude that rounds to zero

# Spellings of constants that float16 cannot hold. A file without any of them is not parsed.
LARGE_CONSTANTS = ("1e", "2e", "3e", "5e", "9e", "0000", "finfo(torch.float", "2**", "2 **")
SMALL_CONSTANTS = (
    "e-8", "e-08", "e-9", "e-09", "e-1", "e-2", "e-3", "2**-", "2 ** -", "0.00000001",
)  # fmt: skip

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


def find_logarithms(file: PythonFile) -> Iterator[tuple[ast.Call, ast.AST | None, bool]]:
    """Yield every ``log(x)``: the call, ``x``, and whether an eps that underflows was added to ``x``."""
    for call in file.calls("log"):
        if is_reference_code(file, call):
            continue
        inner: ast.AST | None = receiver(call)
        if file.full_name(call.func) == "torch.log":
            inner = argument(call, 0, "input")
        has_eps = False
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            for side, other in ((inner.left, inner.right), (inner.right, inner.left)):
                if underflows_half(file.constant(other)):
                    inner, has_eps = side, True
                    break
        yield call, inner, has_eps


def clamp_arguments(file: PythonFile, call: ast.Call) -> tuple[ast.expr | None, ...]:
    """Return the tensor, the lower bound and the upper bound of a clamp."""
    offset = int(file.is_torch_call(call))
    return file.tensor_of(call), argument(call, offset, "min"), argument(call, offset + 1, "max")


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
    """Return whether a value is float16, or has the precision of the model."""
    known = file.precision(node)
    if known is not Precision.MAYBE:
        return known is Precision.HALF
    region = file.autocast.around(node)
    # An author who turned autocast off has already thought about precision.
    return region is None or region.enabled is not False


def is_certainly_half(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a value is cast to float16, or is in a float16 autocast block."""
    known = file.precision(node)
    region = file.autocast.around(node)
    inside = region is not None and region.is_half
    return known is Precision.HALF or (known is Precision.MAYBE and inside)


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
