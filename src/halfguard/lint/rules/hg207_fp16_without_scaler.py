"""A model is trained under float16 autocast without a gradient scaler."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from halfguard.lint.autocast import Autocast
from halfguard.lint.expressions import argument, boolean, name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Step
from halfguard.lint.syntax_tree import Function, parameter_default, parameter_names

META = Meta(
    contains=("autocast",),
    also_contains=("backward",),
)
_CHANGED_GRADIENTS = re.compile(
    r"\.grad\b[^\n]*(?:[/*]=|\bdiv|\bmul)|\.grad\s*=[^=]|_foreach_|loss_scale"
)
_MESSAGE = "float16 autocast without a loss scale: small gradients become zero."


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 training without a scaler."""
    if file.roles.has_scaler or file.roles.uses_scaling_framework or "caler" in file.source.text:
        return
    if _CHANGED_GRADIENTS.search(file.source.text):
        return
    regions: dict[Function | None, list[tuple[ast.AST, Autocast]]] = defaultdict(list)
    for node, region in file.autocast.by_node.items():
        if region.is_half and not file.is_inference(region.call):
            regions[file.function_of(node)].append((node, region))
    for step in file.steps:
        if not step.has("optimizer_step") or not step.has("backward"):
            continue
        for function in {file.function_of(event.node) for event in step.events}:
            for node, region in regions.get(function, ()):
                if step.loop is None or step.loop in file.ancestors(node):
                    yield match_at(region.call, _MESSAGE)
        for call in _calls_in(file, step):
            helper = file.local_function(call)
            if any(_is_on_for(file, node, call) for node, _ in regions.get(helper, ())):
                yield match_at(call, _MESSAGE)


def _calls_in(file: PythonFile, step: Step) -> Iterator[ast.Call]:
    """Yield the calls of this file's functions that compute the loss of a step: ``loss = loss_of(...)``."""
    losses = [e.node for e in step.find("backward") if isinstance(e.node, ast.Call)]
    for call in losses:
        made = file.assigned_value(receiver(call))
        if isinstance(made, ast.Call) and file.local_function(made) is not None:
            yield made


def _is_on_for(file: PythonFile, region: ast.AST, call: ast.Call) -> bool:
    """Return whether a call runs a region of its function that may depend on an argument: ``if amp:``."""
    function = file.function_of(region)
    names = [n for n in parameter_names(function) if n != "self"] if function else []
    for parent in file.ancestors(region):
        if isinstance(parent, ast.If) and function and name_of(parent.test) in names:
            name = name_of(parent.test)
            given = argument(call, names.index(name), name) or parameter_default(function, name)
            if boolean(given) is False:
                return False
    return True
