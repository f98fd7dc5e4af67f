"""Gradients are clipped while they are still scaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_before, make_fix
from halfguard.lint.steps import Event, Step

META = Meta(
    contains=("clip_grad",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find clipping of scaled gradients."""
    for step in file.steps:
        for clip in step.find("clip"):
            scaler_step = _scaler_step_after(step, clip)
            if not step.before(clip, "scaled_backward") or scaler_step is None:
                continue
            if not step.before(clip, "unscale"):
                message = "The gradients are still multiplied by the loss scale when clipped."
                yield match_at(clip.node, message, _fix(file, clip, scaler_step))


def _scaler_step_after(step: Step, clip: Event) -> Event | None:
    later = step.events[step.events.index(clip) :]
    return next((e for e in later if e.kind == "scaler_step" and not e.excludes(clip)), None)


def _fix(file: PythonFile, clip: Event, scaler_step: Event) -> Fix | None:
    statement = file.statement_of(clip.node)
    same = file.function_of(clip.node) is file.function_of(scaler_step.node)
    if not isinstance(statement, ast.Expr | ast.Assign) or not same or not scaler_step.optimizer:
        return None
    if not isinstance(scaler_step.node, ast.Call):
        return None
    owner = file.text(scaler_step.node.func).rpartition(".")[0]
    text = f"{owner}.unscale_({file.text(scaler_step.node.args[0])})"
    return make_fix("safe", insert_before(file, statement, text))
