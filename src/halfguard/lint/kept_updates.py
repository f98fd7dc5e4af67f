"""Optimizers that a file shows, and whether float16 weights keep their updates.

Below 1 the numbers of float16 are 2**-11 apart, so a change of less than 2**-12 is rounded away there. Adam
changes a weight by about a quarter of the learning rate if gradients are noisy. SGD multiplies the gradient,
so its rate says less: 0.01 keeps the updates of gradients above 0.02.

An optimizer that is written here is read. Of one that is imported only the name and the settings are known:
"master", "Kahan" and the like say that it keeps what rounding cuts off.
"""

from __future__ import annotations

import ast
import re

from halfguard.lint.expressions import argument, boolean, called_name, name_of
from halfguard.lint.numeric_checks import underflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

_SGD_RATE, _ADAM_RATE = 0.01, 0.002
_KEEPING = re.compile(r"master|kahan|compensat|stochastic|fp16_?optimizer", re.I)
_ADAM_LIKE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"}


def keeps_updates(file: PythonFile) -> bool:
    """Return whether no optimizer of this file loses updates to float16 weights, as far as it shows.

    It has a high learning rate, or its parameters are float32 (copies, or cast back), or it is written here
    and computes in float32 or adds up what rounding cuts off, or its name says so.
    """
    own = {
        node.name: node
        for node in file.nodes(ast.ClassDef)
        if any(file.full_name(base).endswith("Optimizer") for base in node.bases)
    }
    made = [c for c in file.nodes(ast.Call) if _is_torch_optimizer(file, c)]
    written = list(file.calls(*own))
    if not made and not written:
        return any(_names_it(file, call) for call in file.nodes(ast.Call))
    return all(
        _updates_copies(file, call) or are_cast_back(file, call) or _is_high(file, call)
        for call in made
    ) and all(_is_exact(file, own[called_name(call)]) for call in written)


def _is_torch_optimizer(file: PythonFile, call: ast.Call) -> bool:
    name = file.full_name(call.func)
    return name.startswith("torch.optim.") and "lr_scheduler" not in name


def _updates_copies(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the parameters of an optimizer are float32 copies, made in this file."""
    given = argument(call, 0, "params")
    return given is not None and file.precision(given) is Precision.FULL


def are_cast_back(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the parameters were made float32 again: ``p.data = p.data.float()``."""
    assigned = [
        node for node in file.nodes(ast.Assign) if file.precision(node.value) is Precision.FULL
    ]
    targets = [target for node in assigned for target in node.targets]
    cast = {
        name_of(target.value)
        for target in targets
        if isinstance(target, ast.Attribute) and target.attr == "data"
    }
    given = argument(call, 0, "params")
    if isinstance(given, ast.List | ast.Tuple):
        return bool(given.elts) and all(name_of(one) in cast for one in given.elts)
    loops = [node for node in file.nodes(ast.For) if "parameters()" in file.text(node.iter)]
    names = {
        name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)
    }
    return bool(names & cast)


def _is_exact(file: PythonFile, written: ast.ClassDef) -> bool:
    """Return whether an optimizer of this file computes in float32, or keeps what rounding cuts off."""
    text = file.text(written)
    return ".float()" in text or bool(_KEEPING.search(text)) or _compensates(file)


def _compensates(file: PythonFile) -> bool:
    """Return whether the file has Kahan's ``y - (t - p)`` of ``t = p + y``."""
    for node in file.nodes(ast.BinOp):
        for inner in (node.left, node.right):
            if not (isinstance(node.op, ast.Sub) and isinstance(inner, ast.BinOp)):
                continue
            total = file.assigned_value(inner.left) if isinstance(inner.op, ast.Sub) else None
            if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add):
                parts = {ast.dump(total.left), ast.dump(total.right)}
                if ast.dump(inner.right) in parts:
                    return True
    return False


def _names_it(file: PythonFile, call: ast.Call) -> bool:
    """Return whether an optimizer from elsewhere says that it keeps small updates."""
    parameters = any("parameters()" in file.text(given) for given in call.args[:1])
    return parameters and bool(_KEEPING.search(file.text(call)))


def _is_high(file: PythonFile, call: ast.Call) -> bool:
    rate = file.constant(argument(call, 1, "lr"))
    if rate is None:
        return False
    if called_name(call) == "SGD":
        return rate >= _SGD_RATE
    eps = file.constant(argument(call, -1, "eps"))
    fused = boolean(argument(call, -1, "fused")) is True
    has_eps = fused or (eps is not None and not underflows_half(eps))
    return called_name(call) in _ADAM_LIKE and rate >= _ADAM_RATE and has_eps
