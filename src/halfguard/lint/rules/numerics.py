"""Binary cross-entropy under autocast, and penalties on the gradients of a scaled loss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, called_name, receiver
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.values import module_class
from halfguard.repairs.source_file import SourceFile


@rule("HG107", "binary_cross_entropy", "BCELoss", also=("autocast",))
def check_bce(file: PythonFile) -> Iterator[Match]:
    """Find binary cross-entropy inside autocast regions."""
    for call in file.calls("binary_cross_entropy"):
        if _is_lowered(file, call):
            yield match_at(
                call, "binary_cross_entropy is unsafe under autocast.", _logits(file, call)
            )
    imported = file.aliases.get("BCELoss", "torch.")
    for variable in file.constructed("BCELoss") if imported.startswith("torch.") else ():
        for call in file.calls_of(variable):
            # Another function may use the same name for another loss.
            if module_class(file, call) == "BCELoss" and _is_lowered(file, call):
                yield match_at(call, f"{variable} is a BCELoss, which is unsafe under autocast.")


def _is_lowered(file: PythonFile, call: ast.Call) -> bool:
    region = file.autocast.around(call)
    if region is None or region.enabled is False or file.is_inference(call):
        return False
    return not call.args or file.precision(call.args[0]) is not Precision.FULL


def _logits(file: PythonFile, call: ast.Call) -> Fix | None:
    first = argument(call, 0, "input")
    if not isinstance(first, ast.Call) or called_name(first) != "sigmoid":
        return None
    inner = argument(first, 0, "input") if first.args else receiver(first)
    if inner is None or argument(call, 2, "weight") is not None:
        return None

    def edit(source: SourceFile) -> None:
        source.append(call.func, "_with_logits")
        source.replace(first, source.source(inner))

    return file.fix("safe", edit)


@rule("HG213", "autograd.grad", "import grad", also=("caler",))
def check_penalties(file: PythonFile) -> Iterator[Match]:
    """Find gradients of a scaled loss that are differentiated again as they are."""
    for call in file.calls("grad"):
        if file.full_name(call.func) != "torch.autograd.grad":
            continue
        outputs = argument(call, 0, "outputs")
        if boolean(argument(call, 4, "create_graph")) is not True or not _is_scaled(file, outputs):
            continue
        function = file.function_of(call)
        around = file.source.text if function is None else file.text(function)
        if not re.search(r"get_scale|inv_?scale|unscale|\b_scale\b", around, re.I):
            message = "These gradients are multiplied by the loss scale, and so is the penalty."
            yield match_at(call, message)


def _is_scaled(file: PythonFile, node: ast.AST | None) -> bool:
    """Return whether an expression is ``scaler.scale(loss)``, directly, in a list or by a name."""
    if isinstance(node, ast.Tuple | ast.List):
        return any(_is_scaled(file, part) for part in node.elts)
    value = file.assigned_value(node)
    if not isinstance(value, ast.Call) or called_name(value) != "scale":
        return False
    return file.roles.is_scaler(receiver(value))
