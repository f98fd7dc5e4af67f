"""Infer the precision of a value from casts, dtypes and assignments.

There are three answers. FULL and HALF need proof: a cast, a dtype, NumPy. Everything else is MAYBE: the value
has the precision of the model, which the user may train in float16.
"""

from __future__ import annotations

import ast
from enum import Enum
from itertools import islice

from halfguard.lint.autocast import AutocastRegions
from halfguard.lint.expressions import argument, called_name, name_of, number, receiver
from halfguard.lint.syntax_tree import Function, SyntaxTree, parameter_names

HALF_DTYPES = {"torch.float16", "torch.half", "float16", "fp16"}
FULL_DTYPES = {"torch.float32", "torch.float", "torch.float64", "torch.double", "float32"}
_CREATORS = {"zeros", "ones", "full", "empty", "rand", "randn", "arange", "linspace", "eye", "stft"}
# Operations that autocast runs in its own dtype for any input: the first ones of torch's list.
_AUTOCAST_OPS = {"linear", "matmul", "mm", "bmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d"}
_NUMBER_FUNCTIONS = {"len", "float", "int", "sum", "max", "min"}
_NOT_TENSORS = ("numpy.", "math.", "jax.", "tensorflow.", "scipy.", "keras.", "cv2.", "sympy.")
_MAX_DEPTH = 12
_MAX_CALLERS = 32  # the first calls of a helper are enough to judge it


class Precision(Enum):
    """Known precision of a value."""

    HALF = "half"
    FULL = "full"
    MAYBE = "maybe"


def precision_of_dtype(tree: SyntaxTree, node: ast.AST | None) -> Precision | None:
    """Return HALF or FULL for a dtype argument, or None if it is not a known dtype."""
    if node is None:
        return None
    name = node.value if isinstance(node, ast.Constant) else tree.full_name(node)
    if name in HALF_DTYPES:
        return Precision.HALF
    return Precision.FULL if name in FULL_DTYPES else None


class PrecisionReader:
    """Infers the precision of the expressions in a file, as far as the source shows it."""

    def __init__(self, tree: SyntaxTree, autocast: AutocastRegions) -> None:
        self.tree = tree
        self.autocast = autocast
        self._of_parameters: dict[tuple[Function, str], Precision] = {}

    def read(self, node: ast.AST, depth: int = 0) -> Precision:
        if depth > _MAX_DEPTH:
            return Precision.MAYBE
        if isinstance(node, ast.Call):
            return self._of_call(node, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            region = self.autocast.around(node)
            if region is not None and region.enabled is not False:
                return Precision.HALF if region.is_half else Precision.MAYBE
        if isinstance(node, ast.BinOp):
            return self._promote([node.left, node.right], depth)
        if isinstance(node, ast.UnaryOp):
            return self.read(node.operand, depth + 1)
        if isinstance(node, ast.Subscript):
            return self.read(node.value, depth + 1)
        if isinstance(node, ast.Name):
            assigned = self.tree.last_assignment(node)
            if assigned is None:
                return self._of_parameter(node, depth)
            if assigned.value is not None:
                return self.read(assigned.value, depth + 1)
        if isinstance(node, ast.Attribute) and node.attr in {"data", "T", "mT", "grad"}:
            return self.read(node.value, depth + 1)
        return Precision.MAYBE

    def _of_parameter(self, node: ast.Name, depth: int) -> Precision:
        """Return the precision that all callers in this file pass, or MAYBE if they differ."""
        function = self.tree.function_of(node)
        names = [n for n in parameter_names(function) if n != "self"] if function else []
        if function is None or node.id not in names:
            return Precision.MAYBE
        if self._casts_inputs(function):
            return Precision.FULL
        parameter = (function, node.id)
        if parameter not in self._of_parameters:
            self._of_parameters[parameter] = Precision.MAYBE  # for recursive functions
            passed = [
                argument(call, names.index(node.id), node.id)
                for call in islice(self.tree.calls(function.name), _MAX_CALLERS)
                if name_of(call.func) in {function.name, f"self.{function.name}"}
            ]
            found = {self.read(a, depth + 1) if a else Precision.MAYBE for a in passed}
            self._of_parameters[parameter] = found.pop() if len(found) == 1 else Precision.MAYBE
        return self._of_parameters[parameter]

    def _casts_inputs(self, function: Function) -> bool:
        """Return whether a decorator casts the inputs: ``custom_fwd(cast_inputs=torch.float32)``."""
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call):
                dtype = argument(decorator, -1, "cast_inputs")
                if precision_of_dtype(self.tree, dtype) is Precision.FULL:
                    return True
            elif "opmath" in name_of(decorator):
                return True
        return False

    def _of_call(self, call: ast.Call, depth: int) -> Precision:
        name, owner = called_name(call), receiver(call)
        if name == "half" and not call.args:
            return Precision.HALF
        if name in {"float", "double", "item", "tolist", "numpy", "long", "int", "bool"}:
            return Precision.FULL
        dtypes = [argument(call, -1, "dtype")]
        if name in {"to", "type", "astype"}:
            dtypes = [*call.args, *(k.value for k in call.keywords)]
        if known := [p for dtype in dtypes if (p := precision_of_dtype(self.tree, dtype))]:
            return known[0]
        full_name = self.tree.full_name(call.func)
        if full_name.startswith(_NOT_TENSORS) or full_name in _NUMBER_FUNCTIONS:
            return Precision.FULL
        if full_name.startswith("torch."):
            region = self.autocast.around(call) if name in _AUTOCAST_OPS else None
            if region is not None and region.enabled is not False:
                return Precision.HALF if region.is_half else Precision.MAYBE
            if name in _CREATORS and argument(call, -1, "dtype") is None:
                return Precision.FULL
            return self._promote(call.args[:3], depth)
        if owner is not None and name_of(owner) != "self":
            return self.read(owner, depth + 1)
        # An unknown function of float32 values returns float32, unless autocast is on.
        inputs = {self.read(a, depth + 1) for a in call.args if number(a) is None}
        is_full = inputs == {Precision.FULL} and self.autocast.around(call) is None
        return Precision.FULL if is_full else Precision.MAYBE

    def _promote(self, inputs: list[ast.expr], depth: int) -> Precision:
        """Return the result of type promotion: FULL wins, then HALF."""
        found = [self.read(a, depth + 1) for a in inputs if number(a) is None]
        if Precision.FULL in found:
            return Precision.FULL
        return Precision.HALF if Precision.HALF in found else Precision.MAYBE
