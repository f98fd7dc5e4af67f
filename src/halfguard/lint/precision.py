"""Whether a value may be half: read from casts, dtypes and what a name was last given.

One idea: three answers. FULL needs proof (a cast, a dtype, NumPy), HALF needs proof as well, and all the
rest is MAYBE: the value has the precision of the model, which is what a user of this tool will halve.
"""

from __future__ import annotations

import ast
from enum import Enum
from itertools import islice
from typing import cast

from halfguard.lint.autocast import Regions
from halfguard.lint.module import Function, Module, parameters
from halfguard.lint.names import argument, key, last_name, number, receiver

HALF_DTYPES = {"torch.float16", "torch.half", "float16", "fp16"}
FULL_DTYPES = {"torch.float32", "torch.float", "torch.float64", "torch.double", "float32"}
_CREATORS = {"zeros", "ones", "full", "empty", "rand", "randn", "arange", "linspace", "eye", "stft"}
# What autocast runs in its own dtype, whatever goes in: the head of torch's list.
_CASTING = {"linear", "matmul", "mm", "bmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d"}
_NOT_TENSORS = ("numpy.", "math.", "jax.", "tensorflow.", "scipy.", "keras.", "cv2.", "sympy.")
_DEPTH = 12
_MAX_CALLERS = 32  # a helper that is called more often is generic, and the rest would agree


class Precision(Enum):
    """What is known of a value's format."""

    HALF = "half"
    FULL = "full"
    MAYBE = "maybe"


def precision(module: Module, regions: Regions, node: ast.AST, depth: int = 0) -> Precision:
    """The precision of an expression, as far as the source tells."""
    if depth > _DEPTH:
        return Precision.MAYBE
    if isinstance(node, ast.Call):
        return _of_call(module, regions, node, depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        region = regions.around(node)
        if region is not None and region.enabled is not False:
            return Precision.HALF if region.is_half else Precision.MAYBE
    if isinstance(node, ast.BinOp):
        sides = [precision(module, regions, n, depth + 1) for n in (node.left, node.right)
                 if number(n) is None]  # fmt: skip
        return _combine(sides)
    if isinstance(node, ast.UnaryOp):
        return precision(module, regions, node.operand, depth + 1)
    if isinstance(node, ast.Subscript):
        return precision(module, regions, node.value, depth + 1)
    if isinstance(node, ast.Name):
        bound = module.latest(node)
        if bound is None:
            return _of_parameter(module, regions, node, depth)
        if bound.value is not None:
            return precision(module, regions, bound.value, depth + 1)
    if isinstance(node, ast.Attribute) and node.attr in {"data", "T", "mT", "grad"}:
        return precision(module, regions, node.value, depth + 1)
    return Precision.MAYBE


def _casts_up(module: Module, function: Function) -> bool:
    """Whether a decorator casts what goes in: ``custom_fwd(cast_inputs=torch.float32)`` and its like."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            if dtype_of(module, argument(decorator, -1, "cast_inputs")) is Precision.FULL:
                return True
        elif "opmath" in key(decorator):
            return True
    return False


def _of_parameter(module: Module, regions: Regions, node: ast.Name, depth: int) -> Precision:
    """What every caller in this module passes: a helper that only ever gets floats is FULL."""
    function = module.function_of(node)
    names = [n for n in parameters(function) if n != "self"] if function else []
    if function is None or node.id not in names:
        return Precision.MAYBE
    if _casts_up(module, function):
        return Precision.FULL
    place = (function, node.id)
    if place not in regions.parameters:
        regions.parameters[place] = Precision.MAYBE  # the answer while a function calls itself
        given = [
            argument(call, names.index(node.id), node.id)
            for call in islice(module.calls(function.name), _MAX_CALLERS)
            if key(call.func) in {function.name, f"self.{function.name}"}
        ]
        known = {precision(module, regions, a, depth + 1) if a else Precision.MAYBE for a in given}
        regions.parameters[place] = known.pop() if len(known) == 1 else Precision.MAYBE
    return cast("Precision", regions.parameters[place])


def dtype_of(module: Module, node: ast.AST | None) -> Precision | None:
    """What a dtype argument says: HALF, FULL, or None where it is not a known dtype."""
    if node is None:
        return None
    name = node.value if isinstance(node, ast.Constant) else module.dotted(node)
    if name in HALF_DTYPES:
        return Precision.HALF
    return Precision.FULL if name in FULL_DTYPES else None


def _of_call(module: Module, regions: Regions, call: ast.Call, depth: int) -> Precision:
    name = last_name(call)
    owner = receiver(call)
    if name == "half" and not call.args:
        return Precision.HALF
    if name in {"float", "double", "item", "tolist", "numpy", "long", "int", "bool"}:
        return Precision.FULL
    if name in {"to", "type", "astype"}:
        told = [dtype_of(module, a) for a in (*call.args, *(k.value for k in call.keywords))]
        if any(told):
            return next(t for t in told if t)
    if told_dtype := dtype_of(module, argument(call, -1, "dtype")):
        return told_dtype
    dotted = module.dotted(call.func)
    if dotted.startswith(_NOT_TENSORS) or dotted in {"len", "float", "int", "sum", "max", "min"}:
        return Precision.FULL
    if dotted.startswith("torch."):
        if name in _CASTING and (region := regions.around(call)) and region.enabled is not False:
            return Precision.HALF if region.is_half else Precision.MAYBE
        if name in _CREATORS and argument(call, -1, "dtype") is None:
            return Precision.FULL
        inputs = [a for a in call.args[:3] if number(a) is None]
        return _combine([precision(module, regions, a, depth + 1) for a in inputs])
    if owner is not None and key(owner) != "self":
        return precision(module, regions, owner, depth + 1)
    # An unknown function of float32 values gives float32, unless autocast has a say.
    given = {precision(module, regions, a, depth + 1) for a in call.args if number(a) is None}
    all_full = given == {Precision.FULL}
    return Precision.FULL if all_full and regions.around(call) is None else Precision.MAYBE


def _combine(sides: list[Precision]) -> Precision:
    """What type promotion gives: the wider one, and doubt when in doubt."""
    if Precision.FULL in sides:
        return Precision.FULL
    return Precision.HALF if Precision.HALF in sides else Precision.MAYBE
