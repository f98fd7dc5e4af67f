"""A loss is computed outside of autocast from float16 outputs of a model."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("autocast",),
    also_contains=("caler",),
    needs_half=True,
)
# Losses of torch that are float32 if one of their arguments is.
_PROMOTING = re.compile(
    r"^(mse|l1|smooth_?l1|bce_?with_?logits|binary_cross_entropy|kl_?div)", re.I
)
_LOSS = re.compile(r"loss|criteri(on|a)|objective", re.I)
_MODEL = re.compile(
    r"(^|[._])(model|net|network|student|backbone|generator|discriminator|unet|gen|disc|net_?[a-z0-9]{1,3}"
    r"|model_\w+|\w+_(model|net))$",
    re.I,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find losses of float16 outputs outside of autocast, the first one of each function."""
    if not file.roles.has_scaler or not file.autocast.by_node:
        return
    trained = {file.function_of(e.node) for s in file.steps for e in s.find("scaled_backward")}
    for call in file.nodes(ast.Call):
        function = file.function_of(call)
        if function not in trained or not _LOSS.search(called_name(call)):
            continue
        if file.project.casting_losses and not _is_of_torch(file, call):
            continue
        region = file.autocast.directly_around(call)
        if (region is not None and region.enabled is not False) or file.is_inference(call):
            continue
        if _promotes(file, call):
            continue
        output = next((a for a in call.args if _is_half_output(file, a)), None)
        if output is not None and _is_kept(file, call):
            trained.discard(function)
            message = (
                f"{file.text(output)} and this loss are float16, because autocast is off here; its "
                "gradient overflows from a scale of 65,536 on."
            )
            yield match_at(call, message)


def _is_of_torch(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a loss is one of ``torch.nn``: a function, or an instance that this file makes."""
    if file.is_torch_call(call):
        return True
    assigned = file.last_assignment(call.func)
    made = assigned.value if assigned else None
    return isinstance(made, ast.Call) and file.is_torch_call(made)


def _promotes(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a float32 argument makes the loss float32; targets from a loader are float32."""
    if any(file.precision(a) is Precision.FULL for a in call.args):
        return True
    assigned = file.last_assignment(call.func)
    made = assigned.value if assigned and isinstance(assigned.value, ast.Call) else call
    if not (file.is_torch_call(made) and _PROMOTING.search(called_name(made))):
        return False
    return not all(_is_half_output(file, a, single=True) for a in call.args[:2])


def _is_half_output(file: PythonFile, node: ast.expr, *, single: bool = False) -> bool:
    """Return whether a value is the output of a model that ran under float16 autocast.

    A single output is all that the model returns; one of several may be float32.
    """
    if isinstance(node, ast.Subscript):
        node = node.value
    assigned = file.last_assignment(node) if isinstance(node, ast.Name) else None
    made = (assigned.value or (None if single else assigned.container)) if assigned else None
    if not isinstance(made, ast.Call) or not _MODEL.search(name_of(made.func)):
        return False
    region = file.autocast.directly_around(made)
    return (
        region is not None
        and region.enabled is not False
        and file.autocast.lowers_to(made) == "float16"
        and not file.is_inference(made)
    )


def _is_kept(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the result is assigned, and not only logged; a local loss may cast its inputs."""
    statement = file.statement_of(call)
    own = file.local_function(call)
    casts = own is not None and ".float()" in ast.unparse(own)
    return isinstance(statement, ast.Assign | ast.AugAssign) and not casts
