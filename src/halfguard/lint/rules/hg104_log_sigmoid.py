"""`log(sigmoid(x))` is -inf for inputs that `logsigmoid` handles."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.numeric_checks import (
    Logarithm,
    can_be_repeated,
    find_logarithms,
    functional_prefix,
    imports_for,
    may_be_half,
    module_class,
)
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    contains=("sigmoid", "Sigmoid"),
    also_contains=("torch.log(", ".log()"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of sigmoids, also through one assignment."""
    for log in find_logarithms(file):
        score = _sigmoid_of(file, log.origin)
        if score is None or not _can_be_infinite(file, log):
            continue
        function = "1 - sigmoid(x)" if log.complement else "sigmoid(x)"
        sign = "-" if log.complement else ""
        message = (
            f"log({function}) is -inf where the sigmoid is rounded; logsigmoid({sign}x) is exact."
        )
        yield match_at(log.call, message, _fix(file, log, score))


def _can_be_infinite(file: PythonFile, log: Logarithm) -> bool:
    """Return whether usual scores make the logarithm infinite.

    One minus a sigmoid rounds to 0 from 8 on in float16, and from 17 on in float32, which few scores
    reach. A sigmoid is 0 below -17 in float16, but only below -88 in float32.
    """
    if file.is_inference(log.call):
        return False
    if not log.has_eps and not file.project.known:
        return True
    return may_be_half(file, log.origin)


def _sigmoid_of(file: PythonFile, node: ast.AST | None) -> ast.expr | None:
    """Return the input of a sigmoid: a function, a method, or a module that ends in one."""
    if not isinstance(node, ast.Call):
        return None
    if called_name(node) == "sigmoid":
        own = file.local_function(node)
        if own is None and (file.is_torch_call(node) or not node.args):
            return file.tensor_of(node)
    if module_class(file, node) == "Sigmoid" and len(node.args) == 1:
        return node.args[0]
    return None


def _fix(file: PythonFile, log: Logarithm, score: ast.expr) -> Fix | None:
    """Replace the logarithm, if the score can be repeated where it stands."""
    made = log.origin
    if not isinstance(made, ast.Call) or called_name(made) != "sigmoid":
        return None
    if made is not log.operand and not can_be_repeated(file, score, log.call):
        return None
    name = functional_prefix(file)
    text = f"-({file.text(score)})" if log.complement else file.text(score)
    edit = replace(file, log.call, f"{name}.logsigmoid({text})")
    return make_fix("unsafe" if log.has_eps else "safe", edit, imports=imports_for(name))
