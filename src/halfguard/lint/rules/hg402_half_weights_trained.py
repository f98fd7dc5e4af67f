"""Float16 weights are trained without float32 copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import name_of, string
from halfguard.lint.half_weights import find_trained_half_models, keep_full, may_keep_updates
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("half(", "float16", "torch.half", '"amp"', "'amp'"),
    also_contains=("step(", "TrainingArguments", "SFTConfig", '"amp"', "'amp'"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 models that are trained without a scaler."""
    if file.roles.has_scaler:
        yield from _check_choice(file)
        return
    if may_keep_updates(file):
        return
    for call in find_trained_half_models(file, "optimizer_step", "backward", fp16=False):
        message = "float16 weights lose small updates: 1 - 1e-4 is 1 in float16."
        yield match_at(call, message, _fix(file, call))


def _check_choice(file: PythonFile) -> Iterator[Match]:
    """Find scalers that only one of several precisions gets, if another one trains float16 weights."""
    if not (file.project.half_weights and file.project.mixed):
        return
    for node in file.nodes(ast.Compare):
        is_amp = string(node.comparators[0]) == "amp" and isinstance(node.ops[0], ast.Eq)
        if is_amp and name_of(node.left).endswith("precision") and _makes_scaler(file, node):
            message = 'Only "amp" gets a scaler: float16 weights are trained without one.'
            yield match_at(node, message)


def _makes_scaler(file: PythonFile, test: ast.Compare) -> bool:
    """Return whether a scaler is constructed if a test is true."""
    parent = file.parents.get(test)
    if isinstance(parent, ast.If | ast.IfExp):
        return any(call in ast.walk(parent) for call in file.roles.constructed_scalers)
    return isinstance(parent, ast.Assign) and "scaler" in name_of(parent.targets[0])


def _fix(file: PythonFile, call: ast.Call) -> Fix | None:
    """Keep the weights in float32, unless inputs are cast to float16 to match them."""
    casts_inputs = any(other is not call for other in file.calls("half"))
    return None if casts_inputs else keep_full(file, call)
