"""Infer the precision of a value from casts, dtypes, assignments and the rules of autocast.

FULL, HALF and INTEGER need proof: a cast, a dtype, NumPy, or an operation that autocast always runs in one.
Everything else is MAYBE: the value has the precision of the model, which the user may train in float16.
"""

from __future__ import annotations

import ast
import re
from enum import Enum
from itertools import islice

from halfguard.lint import operations as ops
from halfguard.lint.autocast import AutocastRegions
from halfguard.lint.expressions import argument, called_name, name_of, number, receiver
from halfguard.lint.syntax_tree import Assignment, Function, SyntaxTree, parameter_names

HALF_DTYPES = {"torch.float16", "torch.half", "float16", "fp16"}
FULL_DTYPES = {
    "torch.float32", "torch.float", "torch.float64", "torch.double", "float32", "torch.bfloat16",
}  # fmt: skip
_NUMBER_FUNCTIONS = {"len", "float", "int", "sum", "max", "min", "abs", "round", "bool", "str"}
_NUMBER_METHODS = {"item", "size", "dim", "numel"}
_NOT_TENSORS = ("numpy.", "jax.", "tensorflow.", "scipy.", "keras.", "cv2.", "sympy.", "os.")
# Names of plain numbers; a number does not change the precision of a tensor that it is combined with.
_SCALARS = re.compile(
    r"(^|[._])(\w*scale|scaling|temp(erature)?|tau|\w*factor|alpha|beta|eps(ilon)?|\w*dim|d_k|d_model|"
    r"\w*_?size|num_\w+|n_\w+|\w*heads?|channels|\w*sqrt\w*|norm_fact)$"
)
_VIEWS = {"data", "T", "mT", "H", "mH", "grad", "values", "real"}
_CASTS = {"to", "type", "astype"}
_DEVICE = re.compile(r"device|cuda|cpu|gpu|rank|memory_format", re.IGNORECASE)
_MAX_DEPTH = 40
_MAX_CALLERS = 32  # the first calls of a helper are enough to judge it


class Precision(Enum):
    """Known precision of a value.

    bfloat16 counts as FULL, because its range is that of float32. INTEGER is everything that does not decide
    the precision of a result: plain numbers, indices and masks.
    """

    HALF = "half"
    FULL = "full"
    INTEGER = "integer"
    MAYBE = "maybe"


def precision_of_dtype(tree: SyntaxTree, node: ast.AST | None) -> Precision | None:
    """Return the precision that a dtype argument asks for, or None if it is not a known dtype."""
    if node is None:
        return None
    name = node.value if isinstance(node, ast.Constant) else tree.full_name(node)
    if name in HALF_DTYPES:
        return Precision.HALF
    if name in ops.INTEGER_DTYPES:
        return Precision.INTEGER
    return Precision.FULL if name in FULL_DTYPES else None


class PrecisionReader:
    """Infers the precision of the expressions in a file, as far as the source shows it."""

    def __init__(self, tree: SyntaxTree, autocast: AutocastRegions) -> None:
        self.tree = tree
        self.autocast = autocast
        self._known: dict[ast.AST, Precision] = {}

    def read(self, node: ast.AST, depth: int = 0) -> Precision:
        if node not in self._known:
            self._known[node] = Precision.MAYBE  # for recursive functions
            self._known[node] = self._read(node, depth) if depth <= _MAX_DEPTH else Precision.MAYBE
        return self._known[node]

    def _read(self, node: ast.AST, depth: int) -> Precision:
        if isinstance(node, ast.Call):
            return self._of_call(node, depth)
        if isinstance(node, ast.BinOp):
            return self._of_operator(node, depth)
        if isinstance(node, ast.Name):
            return self._of_name(node, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, depth)
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Invert | ast.Not):
                return Precision.INTEGER
            return self.read(node.operand, depth + 1)
        if isinstance(node, ast.Subscript):
            return self.read(node.value, depth + 1)
        if isinstance(node, ast.Compare):
            return Precision.INTEGER
        if isinstance(node, ast.IfExp):
            return _same({self.read(side, depth + 1) for side in (node.body, node.orelse)})
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
            return self.read(node.value if isinstance(node, ast.DictComp) else node.elt, depth + 1)
        if isinstance(node, ast.Tuple | ast.List):
            return _same({self.read(part, depth + 1) for part in node.elts})
        return Precision.MAYBE

    # --- names -------------------------------------------------------------------------------------

    def _of_name(self, node: ast.Name, depth: int) -> Precision:
        assigned = self.tree.last_assignment(node, in_place=False)
        if assigned is None:
            return self._of_parameter(node, depth)
        return self._of_assignment(assigned, depth)

    def _of_assignment(self, assigned: Assignment, depth: int) -> Precision:
        if assigned.value is not None:
            return self.read(assigned.value, depth + 1)
        container = assigned.container
        if not isinstance(container, ast.Call):
            return Precision.MAYBE
        name = called_name(container)
        if name in ops.SPLITS:
            return self._of_split(container, depth)
        if name == "map" and len(container.args) == 2:
            return self.read(container.args[1], depth + 1)
        function = self.tree.local_function(container)
        if function is not None:
            return self._of_return(function, assigned.element, depth)
        return Precision.MAYBE

    def _of_split(self, call: ast.Call, depth: int) -> Precision:
        owner = receiver(call)
        is_torch = self.tree.is_torch_call(call)
        source = argument(call, 0, "input") if is_torch else owner
        return self.read(source, depth + 1) if source is not None else Precision.MAYBE

    def _of_attribute(self, node: ast.Attribute, depth: int) -> Precision:
        if node.attr in _VIEWS:
            return self.read(node.value, depth + 1)
        if node.attr in {"shape", "ndim", "device"}:
            return Precision.INTEGER
        assigned = self.tree.last_assignment(node, in_place=False)
        return self._of_assignment(assigned, depth) if assigned else Precision.MAYBE

    def _of_parameter(self, node: ast.Name, depth: int) -> Precision:
        """Return the precision that all callers in this file pass, or MAYBE if they differ."""
        function = self.tree.function_of(node)
        names = [n for n in parameter_names(function) if n != "self"] if function else []
        if function is None or node.id not in names:
            return Precision.MAYBE
        if self._casts_inputs(function):
            return Precision.FULL
        if number(self.tree.default_of(node)) is not None:
            return Precision.INTEGER  # a number, not a tensor
        passed = [
            argument(call, names.index(node.id), node.id)
            for call in islice(self.tree.calls(function.name), _MAX_CALLERS)
            if name_of(call.func) in {function.name, f"self.{function.name}"}
        ]
        return _same({self.read(a, depth + 1) if a else Precision.MAYBE for a in passed})

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

    # --- operations --------------------------------------------------------------------------------

    def _of_operator(self, node: ast.BinOp, depth: int) -> Precision:
        if isinstance(node.op, ast.MatMult):
            return self._of_operation("matmul", [node.left, node.right], node, depth)
        if isinstance(node.op, ast.Pow):
            if _is_scalar(node.left):
                return Precision.INTEGER
            return self._of_operation("pow", [node.left], node, depth)
        return self._promote([node.left, node.right], depth, divides=isinstance(node.op, ast.Div))

    def _of_operation(
        self, name: str, inputs: list[ast.expr], node: ast.AST, depth: int
    ) -> Precision:
        """Return the result of a torch operation, under the autocast that is on at this place."""
        if name in ops.LOWERED and (lowered := self.autocast.lowers_to(node)) is not None:
            return Precision.HALF if lowered == "float16" else Precision.FULL
        if name in ops.RAISED and self.autocast.is_on(node):
            return Precision.FULL
        return self._promote(inputs, depth)

    def _of_call(self, call: ast.Call, depth: int) -> Precision:
        name, owner = called_name(call), receiver(call)
        known = self._of_cast(call, name, owner, depth)
        if known is not None:
            return known
        full_name = self.tree.full_name(call.func)
        if full_name.startswith("math."):
            return Precision.INTEGER
        if full_name.startswith(_NOT_TENSORS):
            return Precision.FULL
        if full_name.startswith("torch."):
            return self._of_torch_call(call, name, depth)
        if isinstance(call.func, ast.Call):  # nn.Softmax(dim=1)(x)
            return self._of_module(call.func, call, depth)
        if (made := self._module_behind(call.func)) is not None:
            return self._of_module(made, call, depth)
        function = self.tree.local_function(call)
        if function is not None:
            return self._of_return(function, -1, depth)
        if name in ops.LOWERED and name != "prelu" and (owner is None or name_of(owner) != "self"):
            return self._of_operation(name, [owner] if owner else call.args, call, depth)
        if name in ops.RESHAPES and owner is None:
            return self.read(call.args[0], depth + 1) if call.args else Precision.MAYBE
        if owner is not None and name_of(owner) != "self":
            return self._of_operation(name, [owner], call, depth)
        # An unknown function of float32 values returns float32, unless autocast is on.
        inputs = {self.read(a, depth + 1) for a in call.args if number(a) is None}
        is_full = inputs == {Precision.FULL} and not self.autocast.is_on(call)
        return Precision.FULL if is_full else Precision.MAYBE

    def _of_cast(
        self, call: ast.Call, name: str, owner: ast.expr | None, depth: int
    ) -> Precision | None:
        """Return the precision that a call gives its result explicitly; None if it gives none."""
        if name == "half" and not call.args:
            return Precision.HALF
        if (owner is None and name in _NUMBER_FUNCTIONS) or name in _NUMBER_METHODS:
            return Precision.INTEGER
        if name in {"float", "double", "bfloat16", "tolist", "numpy"}:
            return Precision.FULL
        if name in ops.FULL_CONSTRUCTORS:
            return Precision.FULL
        if name in ops.INTEGER_METHODS or name in ops.INTEGER_CONSTRUCTORS:
            return Precision.INTEGER
        dtypes = [argument(call, -1, "dtype")]
        if name in _CASTS:
            dtypes = [*call.args, *(k.value for k in call.keywords)]
        for dtype in dtypes:
            if known := precision_of_dtype(self.tree, dtype):
                return known
            if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype":  # x.to(other.dtype)
                return self.read(dtype.value, depth + 1)
        if name == "type_as" and call.args:
            return self.read(call.args[0], depth + 1)
        if name in _CASTS and owner is not None and not all(map(self._keeps_dtype, dtypes)):
            # The cast may undo float16; float32 is kept, so that it needs no second proof.
            found = self.read(owner, depth + 1)
            return Precision.MAYBE if found is Precision.HALF else None
        if name.startswith("new_") and owner is not None:
            return self.read(owner, depth + 1) if argument(call, -1, "dtype") is None else None
        return None

    def _keeps_dtype(self, node: ast.expr | None) -> bool:
        """Return whether an argument of ``to`` is float16, or no dtype and no tensor: a device or a flag."""
        value = self.tree.assigned_value(node)
        if precision_of_dtype(self.tree, value) is Precision.HALF or isinstance(
            value, ast.Constant
        ):
            return True
        texts = (ast.unparse(n) for n in (node, value) if n is not None)
        return any(map(_DEVICE.search, texts))

    def _of_torch_call(self, call: ast.Call, name: str, depth: int) -> Precision:
        if name in ops.CREATORS and argument(call, -1, "dtype") is None:
            return Precision.FULL
        if name == "arange":
            return Precision.INTEGER
        if name in ops.LIKE_CREATORS and call.args:
            return self.read(call.args[0], depth + 1)
        if name == "where":
            return self._promote(call.args[1:3], depth)
        if name in {"cat", "stack", "concat", "hstack", "vstack"} and call.args:
            inner = call.args[0]
            parts = list(inner.elts) if isinstance(inner, ast.Tuple | ast.List) else [inner]
            return self._promote(parts, depth)
        return self._of_operation(name, call.args[:3], call, depth)

    # --- modules and functions of the file ---------------------------------------------------------

    def _module_behind(self, function: ast.expr) -> ast.Call | None:
        """Return the constructor of the module that a call runs, such as ``self.norm``."""
        assigned = self.tree.last_assignment(function, in_place=False)
        made = assigned.value if assigned else None
        return made if isinstance(made, ast.Call) else None

    def _of_module(self, made: ast.Call, call: ast.Call, depth: int) -> Precision:
        name = called_name(made)
        if depth > _MAX_DEPTH:
            return Precision.MAYBE
        if name == "Sequential":
            return self._of_sequential(list(made.args), call, depth)
        if name in ops.LOWERED_MODULES and (low := self.autocast.lowers_to(call)) is not None:
            return Precision.HALF if low == "float16" else Precision.FULL
        if name in ops.RAISED_MODULES and self.autocast.is_on(call):
            return Precision.FULL
        if name in ops.UNCHANGED_MODULES and call.args:
            return self.read(call.args[0], depth + 1)
        return Precision.MAYBE

    def _of_sequential(self, modules: list[ast.expr], call: ast.Call, depth: int) -> Precision:
        """Return the precision after the last module that changes it."""
        for module in reversed(modules):
            made = module if isinstance(module, ast.Call) else self._module_behind(module)
            if made is None:
                return Precision.MAYBE
            if called_name(made) not in ops.UNCHANGED_MODULES:
                return self._of_module(made, call, depth + 1)
        return self.read(call.args[0], depth + 1) if call.args else Precision.MAYBE

    def _of_return(self, function: Function, element: int, depth: int) -> Precision:
        """Return the precision of all values that a function returns; -1 stands for the whole value."""
        values = [n.value for n in self.tree.returns_of(function) if n.value is not None]
        if element >= 0:
            values = [
                v.elts[element] if isinstance(v, ast.Tuple) and len(v.elts) > element else v
                for v in values
            ]
        return _same({self.read(v, depth + 1) for v in values})

    def _promote(self, inputs: list[ast.expr], depth: int, *, divides: bool = False) -> Precision:
        """Return the result of type promotion: FULL wins, then HALF; numbers do not count."""
        found = [
            known
            for a in inputs
            if self.tree.constant(a) is None
            if (known := self.read(a, depth + 1)) is not Precision.MAYBE or not _is_scalar(a)
        ]
        if Precision.FULL in found:
            return Precision.FULL
        if Precision.HALF in found:
            return Precision.MAYBE if Precision.MAYBE in found else Precision.HALF
        if found and set(found) == {Precision.INTEGER}:
            has_float = divides or any(not _is_integer(self.tree.constant(a)) for a in inputs)
            return Precision.FULL if has_float else Precision.INTEGER
        return Precision.MAYBE


def _same(found: set[Precision]) -> Precision:
    return found.pop() if len(found) == 1 else Precision.MAYBE


def _is_scalar(node: ast.expr) -> bool:
    """Return whether an expression is named like a plain number."""
    return number(node) is not None or bool(_SCALARS.search(name_of(node)))


def _is_integer(value: float | None) -> bool:
    return value is None or (value.is_integer() and abs(value) < 1000)
