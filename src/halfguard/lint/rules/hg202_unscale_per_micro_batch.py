"""Gradients are unscaled in every micro-batch, but the optimizer does not step in every one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.accelerators import accumulates_gradients, may_run_in_fp16
from halfguard.lint.conditions import is_schedule_check
from halfguard.lint.expressions import name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Event, Step

META = Meta(
    contains=("unscale_", "accelerator.clip_grad"),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find unscaling that happens more often than stepping."""
    yield from _check_accelerate(file)
    for step in file.steps:
        steps = step.find("scaler_step")
        for unscale in step.find("unscale"):
            mine = [
                s for s in steps if s.optimizer == unscale.optimizer and not s.excludes(unscale)
            ]
            if mine and all(_runs_less_often(step, s, unscale) for s in mine):
                message = (
                    "unscale_ runs in every micro-batch, but the step does not: it will raise."
                )
                yield match_at(unscale.node, message)
            elif _is_repeated(file, step, unscale):
                yield match_at(
                    unscale.node, "unscale_ has already run in this step: it will raise."
                )


def _check_accelerate(file: PythonFile) -> Iterator[Match]:
    """Find clipping by an Accelerator in every micro-batch of an accumulation."""
    if "sync_gradients" in file.source.text or not may_run_in_fp16(file):
        return
    if not accumulates_gradients(file):
        return
    for call in file.calls("clip_grad_norm_", "clip_grad_value_"):
        if not name_of(receiver(call)).endswith("accelerator"):
            continue
        blocks = (parent for parent in file.ancestors(call) if isinstance(parent, ast.With))
        if any(_accumulates(item.context_expr) for block in blocks for item in block.items):
            yield match_at(
                call, "This unscales in every micro-batch, but the step does not run there."
            )


def _accumulates(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node.func).endswith("accelerator.accumulate")


def _is_repeated(file: PythonFile, step: Step, unscale: Event) -> bool:
    """Return whether the same optimizer was unscaled before in this step, without an update since."""
    for earlier in step.before(unscale, "unscale"):
        same = (earlier.owner, earlier.optimizer) == (unscale.owner, unscale.optimizer)
        certain = unscale.optimizer != "" and set(earlier.conditions) <= set(unscale.conditions)
        if same and certain and earlier.loops == unscale.loops and earlier.node is not unscale.node:
            return not file.is_assigned_between(earlier, unscale) and all(
                e.kind != "scaler_update" for e in step.between(earlier, unscale)
            )
    return False


def _runs_less_often(step: Step, scaler_step: Event, unscale: Event) -> bool:
    """Return whether a step runs less often than ``unscale_``: on a schedule, or in fewer loops."""
    extra = [t for t in scaler_step.tests if t not in unscale.tests]
    if any(is_schedule_check(test) for test in extra):
        return True
    inner = step.inner_loops(unscale)
    if not inner or any(loop in scaler_step.loops for loop in inner):
        return False
    target = inner[-1].target if isinstance(inner[-1], ast.For) else None
    # A loop over optimizers is not a loop over micro-batches.
    return target is None or "opt" not in ast.unparse(target).lower()
