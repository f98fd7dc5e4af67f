"""One operation of a training step, and the conditions under which it runs."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from halfguard.lint.conditions import Condition
from halfguard.lint.syntax_tree import Function

EventKind = Literal[
    "backward", "scaled_backward", "framework_backward", "unscale", "clip", "gradient_norm", "scaler_step",
    "scaler_update", "optimizer_step", "scheduler_step", "zero_grad", "continue", "return",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Event:
    """One operation of a training step, and when it runs."""

    kind: EventKind
    node: ast.Call | ast.stmt
    owner: str  # name of the scaler, or of the optimizer or scheduler that is stepped directly
    optimizer: str  # name of the optimizer that is passed to ``unscale_`` or ``scaler.step``
    conditions: tuple[Condition, ...]
    loops: tuple[ast.stmt, ...]
    tests: tuple[ast.expr, ...]  # the expressions behind the conditions

    def excludes(self, other: Event) -> bool:
        """Return whether the two can never run in the same iteration."""
        mine = dict(self.conditions)
        return any(mine.get(text, truth) != truth for text, truth in other.conditions)


@dataclass(frozen=True)
class Context:
    """The conditions, loops and inlined calls around a statement."""

    conditions: tuple[Condition, ...] = ()
    loops: tuple[ast.stmt, ...] = ()
    tests: tuple[ast.expr, ...] = ()
    stack: tuple[Function, ...] = ()

    def under(self, condition: Condition, test: ast.expr | None) -> Context:
        """Return this context inside one more condition."""
        tests = (*self.tests, test) if test is not None else self.tests
        return Context((*self.conditions, condition), self.loops, tests, self.stack)
