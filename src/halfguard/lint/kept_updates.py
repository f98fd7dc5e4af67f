"""Optimizers that a file shows, and whether float16 weights keep their updates.

Below 1 the numbers of float16 are 2**-11 apart, so a change of less than 2**-12 is rounded away there. Adam
changes a weight by about a quarter of the learning rate if gradients are noisy. SGD multiplies the gradient,
so its rate says less: 0.01 keeps the updates of gradients above 0.02.
"""

from __future__ import annotations

import ast

from halfguard.lint.expressions import argument, boolean, called_name
from halfguard.lint.numeric_checks import underflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

_SGD_RATE, _ADAM_RATE = 0.01, 0.002
_ADAM_LIKE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"}


def keeps_updates(file: PythonFile) -> bool:
    """Return whether no optimizer of this file loses updates to float16 weights, as far as it shows.

    It has a high learning rate, or it updates float32 copies, or it is written here and computes in float32.
    """
    own = {
        node.name: node
        for node in file.nodes(ast.ClassDef)
        if any(file.full_name(base).endswith("Optimizer") for base in node.bases)
    }
    made = [c for c in file.nodes(ast.Call) if _is_torch_optimizer(file, c)]
    written = list(file.calls(*own))
    if not made and not written:
        return False
    return all(_updates_copies(file, call) or _is_high(file, call) for call in made) and all(
        ".float()" in file.text(own[called_name(call)]) for call in written
    )


def _is_torch_optimizer(file: PythonFile, call: ast.Call) -> bool:
    name = file.full_name(call.func)
    return name.startswith("torch.optim.") and "lr_scheduler" not in name


def _updates_copies(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the parameters of an optimizer are float32 copies, made in this file."""
    given = argument(call, 0, "params")
    return given is not None and file.precision(given) is Precision.FULL


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
