"""Adam divides by an eps that is zero in float16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import exclude_each_other
from halfguard.lint.expressions import argument, boolean, has_keyword, name_of, receiver
from halfguard.lint.half_weights import find_half_models, mentions_copies
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import underflows_half
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("Adam",),
    also_contains=("half(", "float16", "torch.half"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find Adam on float16 models."""
    # A scaler refuses float16 parameters (HG401); adapters are trained in float32.
    if file.roles.has_scaler or file.imports("peft") or mentions_copies(file):
        return
    half_models = [(name, call) for call in find_half_models(file) for name in _names(file, call)]
    for call in file.calls("Adam", "AdamW", "NAdam", "RAdam", "Adamax"):
        if not file.full_name(call.func).startswith("torch.optim") or not call.args:
            continue
        eps = argument(call, -1, "eps")
        is_zero = underflows_half(file.constant(eps)) if eps else not has_keyword(call, "eps")
        fused = boolean(argument(call, -1, "fused")) is True
        model = _model_of(call.args[0])
        made_half = [half for name, half in half_models if name and name == model]
        if not is_zero or fused:
            continue
        if not all(exclude_each_other(file, h, call) for h in made_half):
            yield match_at(call, "The eps of this Adam is 0 in float16: its first step is NaN.")


def _names(file: PythonFile, call: ast.Call) -> set[str]:
    """Return the names of a model that a call makes float16."""
    parent = file.parents.get(call)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {name_of(receiver(call) or call), *map(name_of, targets)}


def _model_of(node: ast.expr) -> str:
    return name_of(receiver(node)) if isinstance(node, ast.Call) else ""
