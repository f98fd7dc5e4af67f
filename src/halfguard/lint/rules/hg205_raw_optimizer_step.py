"""The optimizer steps on gradients that are still scaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import AMP_IS_ON
from halfguard.lint.match import Edit, Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, remove, replace
from halfguard.lint.steps import Event, Step

META = Meta(
    contains=("caler",),
    also_contains=(".step(",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find raw steps after scaled backward passes."""
    for step in file.steps:
        for raw in step.find("optimizer_step"):
            if (AMP_IS_ON, False) in raw.conditions:
                continue
            scaled = step.before(raw, "scaled_backward")
            # Only the last backward pass counts: in a GAN, one of the two losses may not be scaled.
            latest = step.before(raw, "scaled_backward", "backward")
            if not scaled or latest[0].kind != "scaled_backward" or _is_unscaled_by_hand(step, raw):
                continue
            already = [s for s in step.find("scaler_step") if s.optimizer == raw.owner
                       and not s.excludes(raw)]  # fmt: skip
            how = "in addition to scaler.step" if already else "on gradients that are still scaled"
            fix = _fix(file, raw, scaled[0], already=bool(already))
            yield match_at(raw.node, f"{raw.owner}.step() runs {how}.", fix)


def _is_unscaled_by_hand(step: Step, raw: Event) -> bool:
    """Return whether ``unscale_`` runs first and the scaler does not step this optimizer."""
    return bool(step.before(raw, "unscale")) and not any(
        s.optimizer == raw.owner for s in step.find("scaler_step")
    )


def _fix(file: PythonFile, raw: Event, scaled: Event, *, already: bool) -> Fix | None:
    statement = file.statement_of(raw.node)
    if not isinstance(statement, ast.Expr) or not isinstance(raw.node, ast.Call):
        return None
    edit: Edit | None = None
    if already:
        edit = remove(file, statement)
    elif not raw.node.args and file.function_of(raw.node) is file.function_of(scaled.node):
        owner = file.text(raw.node.func).rpartition(".")[0]
        edit = replace(file, raw.node, f"{scaled.owner}.step({owner})")
    return make_fix("safe", edit)
