"""The limits of half that rules about constants need, and the questions they share.

The numbers are those of ``halfguard.formats``, which lint may not import: it stands on layer 0.
A test compares the two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.model import Model
from halfguard.lint.names import argument, last_name, receiver
from halfguard.lint.precision import Precision

OVERFLOW = 65520.0  # the smallest magnitude that rounds to infinity
UNDERFLOW = 2.0**-25  # the largest magnitude that rounds to zero

# How a constant beyond half, or below it, is spelled: what files are searched for before they are read.
BIG = ("1e", "2e", "3e", "5e", "9e", "0000", "finfo(torch.float", "2**", "2 **")
SMALL = ("e-8", "e-08", "e-9", "e-09", "e-1", "e-2", "e-3", "2**-", "2 ** -", "0.00000001")

_TENSOR_METHODS = {
    "abs", "clamp", "clip", "cumsum", "exp", "log", "matmul", "mean", "norm", "pow", "sigmoid",
    "softmax", "sqrt", "square", "std", "sum", "tanh", "unsqueeze", "var", "bmm", "amax", "amin",
}  # fmt: skip


def does_not_fit(value: float | None) -> bool:
    """Whether a finite constant becomes infinite in half."""
    return value is not None and OVERFLOW <= abs(value) < float("inf")


def vanishes(value: float | None) -> bool:
    """Whether a positive constant becomes zero in half."""
    return value is not None and 0 < value <= UNDERFLOW


def logarithms(module: Model) -> Iterator[tuple[ast.Call, ast.AST | None, bool]]:
    """Every ``log(x)``: the call, ``x``, and whether an eps that is zero in half was added to it."""
    for call in module.calls("log"):
        if is_reference(module, call):
            continue
        inner: ast.AST | None = receiver(call)
        if module.dotted(call.func) == "torch.log":
            inner = argument(call, 0, "input")
        has_eps = False
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            for side, other in ((inner.left, inner.right), (inner.right, inner.left)):
                if vanishes(module.constant(other)):
                    inner, has_eps = side, True
                    break
        yield call, inner, has_eps


def is_tensor(module: Model, node: ast.AST, depth: int = 0) -> bool:
    """Whether an expression is surely a torch tensor: a torch call, or a tensor's method."""
    if depth > 6:
        return False
    if isinstance(node, ast.Call):
        dotted = module.dotted(node.func)
        if dotted.startswith("torch."):
            return True
        owner = receiver(node)
        if owner is None or dotted.partition(".")[0] in {"numpy", "math", "jax"}:
            return False
        torch_like = any(k.arg in {"dim", "keepdim"} for k in node.keywords)
        return last_name(node) in _TENSOR_METHODS and (
            torch_like or is_tensor(module, owner, depth + 1)
        )
    if isinstance(node, ast.BinOp):
        return is_tensor(module, node.left, depth + 1) or is_tensor(module, node.right, depth + 1)
    if isinstance(node, ast.Subscript | ast.UnaryOp):
        inner = node.value if isinstance(node, ast.Subscript) else node.operand
        return is_tensor(module, inner, depth + 1)
    if isinstance(node, ast.Name):
        bound = module.latest(node)
        return bool(bound and bound.value and is_tensor(module, bound.value, depth + 1))
    return False


def may_be_half(module: Model, node: ast.AST) -> bool:
    """Whether a value is half, or has the precision of a model that somebody may halve."""
    known = module.precision(node)
    if known is not Precision.MAYBE:
        return known is Precision.HALF
    region = module.regions.around(node)
    # Where autocast is switched off on purpose, the author has already thought about it.
    return region is None or region.enabled is not False


def surely_half(module: Model, node: ast.AST) -> bool:
    """Whether a value is half by its own cast, or stands in a float16 autocast block."""
    known = module.precision(node)
    region = module.regions.around(node)
    inside = region is not None and region.is_half
    return known is Precision.HALF or (known is Precision.MAYBE and inside)


def is_model_value(module: Model, node: ast.AST) -> bool:
    """Whether a value is a tensor that goes through a model, or is half by its own account."""
    if surely_half(module, node):
        return True
    return is_tensor(module, node) and module.roles.is_torch_module(node)


def is_reference(module: Model, node: ast.AST) -> bool:
    """Whether a node stands in code that is called a reference, which is naive on purpose."""
    for parent in module.ancestors(node):
        name = getattr(parent, "name", None) or getattr(parent, "arg", None)
        if isinstance(name, str) and ("reference" in name or name.lstrip("_").startswith("ref_")):
            return True
    return False


def functional(module: Model) -> str:
    """How this file calls ``torch.nn.functional``."""
    names = [name for name, full in module.aliases.items() if full == "torch.nn.functional"]
    return names[0] if names else "torch.nn.functional"


def needs(prefix: str) -> tuple[str, ...]:
    """The imports that a text beginning with this prefix needs."""
    return ("torch",) if prefix.startswith("torch") else ()
