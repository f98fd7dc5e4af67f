"""A loss is not scaled, but its gradients are unscaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import receiver
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, replace
from halfguard.lint.steps import Event, EventKind, Step
from halfguard.lint.syntax_tree import parameter_names

META = Meta(
    contains=("caler",),
    also_contains=(".step(",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find unscaled backward passes before ``scaler.step``."""
    for step in file.steps:
        for scaler_step in step.find("scaler_step"):
            before = _backwards_before(step, scaler_step)
            if not before or any(event.kind != "backward" for event in before):
                continue
            event = before[0]
            if _is_parameter(file, event):
                continue
            message = f"This loss is not scaled, but {scaler_step.owner}.step divides by the scale."
            yield match_at(event.node, message, _fix(file, event, scaler_step))


def _backwards_before(step: Step, scaler_step: Event) -> list[Event]:
    """Return the backward passes since the step of another optimizer; all of them if there are none."""
    kinds: tuple[EventKind, ...] = ("backward", "scaled_backward", "framework_backward")
    found = step.before(scaler_step, *kinds)
    others = [
        e for e in step.before(scaler_step, "scaler_step") if e.optimizer != scaler_step.optimizer
    ]
    if others:
        last = step.events.index(others[0])
        since = [e for e in found if step.events.index(e) > last]
        return since or found
    return found


def _is_parameter(file: PythonFile, event: Event) -> bool:
    """Return whether the function was given the loss: its caller may have scaled it."""
    loss = receiver(event.node) if isinstance(event.node, ast.Call) else None
    function = file.function_of(event.node)
    if function is None or not isinstance(loss, ast.Name):
        return False
    return loss.id in parameter_names(function)


def _fix(file: PythonFile, event: Event, scaler_step: Event) -> Fix | None:
    same = file.function_of(event.node) is file.function_of(scaler_step.node)
    if not same or not isinstance(event.node, ast.Call):
        return None
    loss = receiver(event.node)
    if loss is None or not isinstance(scaler_step.node, ast.Call):
        return None
    scaler = file.text(scaler_step.node.func).rpartition(".")[0]
    return make_fix("safe", replace(file, loss, f"{scaler}.scale({file.text(loss)})"))
