"""Conditions that ask whether a number is healthy: ``isnan(loss)``, ``grad_norm > 2``."""

from __future__ import annotations

import ast
import re

from halfguard.lint.module import Module

_CHECKS = re.compile(r"isnan|isinf|isfinite|is_finite|is_nan|\bnan\b")
_FLAGS = re.compile(
    r"(nan|inf|overflow|finite|bad_|skip|unstable|invalid|grad_?norm|total_norm)", re.I
)
_SCHEDULE = re.compile(r"%|accum|sync|epoch|resume|start|warm", re.I)


def text_of(node: ast.AST) -> str:
    """A condition as text."""
    return ast.unparse(node)


def asks_health(module: Module, test: ast.expr) -> bool:
    """Whether a condition is about NaN, infinity or the size of a gradient."""
    text = text_of(test)
    if _SCHEDULE.search(text):
        return False
    if _CHECKS.search(text):
        return True
    names = [test] if isinstance(test, ast.Name) else []
    bound = module.latest(names[0]) if names else None
    if bound and bound.value is not None and _CHECKS.search(text_of(bound.value)):
        return True
    return bool(_FLAGS.search(text))


def asks_about_loss(module: Module, test: ast.expr) -> bool:
    """Whether a health check is about a loss or an output, before any gradient exists."""
    text = text_of(test)
    if isinstance(test, ast.Name):
        bound = module.latest(test)
        text += text_of(bound.value) if bound and bound.value is not None else ""
    return asks_health(module, test) and bool(re.search(r"loss", text, re.I))


def is_schedule(test: ast.expr) -> bool:
    """Whether a condition is about accumulation: every n-th micro-batch."""
    return bool(_SCHEDULE.search(text_of(test)))
