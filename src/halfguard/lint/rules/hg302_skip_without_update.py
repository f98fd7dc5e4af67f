"""A step is skipped by hand without updating the scale."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import is_gradient_check, is_health_check
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_before, make_fix
from halfguard.lint.steps import Event, Step

META = Meta(
    contains=("caler",),
    also_contains=(".step(",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find skips that never decrease the scale."""
    for step in file.steps:
        if not step.has("scaler_step"):
            continue
        for skip in step.find("continue"):
            scaled = step.before(skip, "scaled_backward")
            if not scaled or not skip.tests or not is_health_check(file, skip.tests[-1]):
                continue
            if any(e.kind == "scaler_update" for e in step.between(scaled[0], skip)):
                continue
            if not step.before(skip, "unscale") and not is_gradient_check(file, skip.tests[-1]):
                continue
            fix = _fix(file, step, skip)
            yield match_at(skip.node, "This skips the step, but the scale never decreases.", fix)


def _fix(file: PythonFile, step: Step, skip: Event) -> Fix | None:
    unscaled = step.before(skip, "unscale")
    if not unscaled or not isinstance(skip.node, ast.stmt):
        return None
    node = unscaled[0].node
    if file.function_of(node) is not file.function_of(skip.node):
        return None
    if not isinstance(node, ast.Call):
        return None
    scaler = file.text(node.func).rpartition(".")[0]
    return make_fix("safe", insert_before(file, skip.node, f"{scaler}.update()"))
