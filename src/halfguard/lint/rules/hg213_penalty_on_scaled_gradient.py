"""A penalty is computed from gradients that are still scaled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, called_name, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("autograd.grad", "import grad"),
    also_contains=("caler",),
)
_UNSCALES = re.compile(r"get_scale|inv_?scale|unscale|\b_scale\b", re.I)


def check(file: PythonFile) -> Iterator[Match]:
    """Find gradients of a scaled loss that are differentiated again as they are."""
    for call in file.calls("grad"):
        if file.full_name(call.func) != "torch.autograd.grad":
            continue
        if boolean(argument(call, 4, "create_graph")) is not True:
            continue
        outputs = argument(call, 0, "outputs")
        if not _is_scaled(file, outputs) or _UNSCALES.search(_text_around(file, call)):
            continue
        yield match_at(
            call, "These gradients are multiplied by the loss scale, and so is a penalty."
        )


def _is_scaled(file: PythonFile, node: ast.AST | None) -> bool:
    """Return whether an expression is ``scaler.scale(loss)``, directly, in a list or by a name."""
    if isinstance(node, ast.Tuple | ast.List):
        return any(_is_scaled(file, part) for part in node.elts)
    value = file.assigned_value(node)
    if not isinstance(value, ast.Call) or called_name(value) != "scale":
        return False
    return file.roles.is_scaler(receiver(value))


def _text_around(file: PythonFile, call: ast.Call) -> str:
    function = file.function_of(call)
    return file.source.text if function is None else file.text(function)
