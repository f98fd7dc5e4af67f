"""One thing that a training step does, and the conditions under which it does it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Literal

from halfguard.lint.module import Function, parameters
from halfguard.lint.roles import Roles

Kind = Literal[
    "backward", "scaled_backward", "framework_backward", "unscale", "clip", "scaler_step",
    "scaler_update", "optimizer_step", "scheduler_step", "zero_grad", "continue", "return",
]  # fmt: skip
Guard = tuple[str, bool]

_AMP = re.compile(
    r"(?<![a-z])(amp|fp16|float16|scaler|half|mixed|precision|autocast)(?![a-z])", re.I
)
_NOT_AMP = re.compile(r"isnan|isinf|isfinite|accum|%|norm|sync|step", re.I)


@dataclass(frozen=True, eq=False)
class Event:
    """One thing that a step does, and when."""

    kind: Kind
    node: ast.Call | ast.stmt
    subject: str  # key of the scaler, or of the optimizer or scheduler for their own steps
    target: str  # key of the optimizer for unscale and scaler_step
    guards: tuple[Guard, ...]
    loops: tuple[ast.stmt, ...]
    tests: tuple[ast.expr, ...]  # the conditions themselves

    def excludes(self, other: Event) -> bool:
        """Whether the two cannot happen in the same pass."""
        mine = dict(self.guards)
        return any(mine.get(text, truth) != truth for text, truth in other.guards)


@dataclass(frozen=True)
class Context:
    """Where a statement stands: conditions, loops and calls around it."""

    guards: tuple[Guard, ...] = ()
    loops: tuple[ast.stmt, ...] = ()
    tests: tuple[ast.expr, ...] = ()
    stack: tuple[Function, ...] = ()


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block never reaches what follows it."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def with_guard(context: Context, guard: Guard, test: ast.expr | None) -> Context:
    """A context inside one more condition."""
    tests = (*context.tests, test) if test is not None else context.tests
    return Context((*context.guards, guard), context.loops, tests, context.stack)


def guard_of(test: ast.expr) -> Guard:
    """A condition as text and truth; every spelling of "is mixed precision on" is one condition."""
    truth = True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, truth = test.operand, not truth
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        nothing = isinstance(test.comparators[0], ast.Constant) and not test.comparators[0].value
        if nothing and isinstance(test.ops[0], ast.Is | ast.Eq):
            test, truth = test.left, not truth
        elif nothing and isinstance(test.ops[0], ast.IsNot | ast.NotEq):
            test = test.left
    text = ast.unparse(test)
    if _AMP.search(text) and not _NOT_AMP.search(text):
        text = "mixed precision is on"
    return text, truth


def renaming(call: ast.Call, callee: Function, roles: Roles) -> dict[str, str]:
    """What the callee's parameters are called by the caller."""
    names = [n for n in parameters(callee) if n != "self"]
    pairs = dict(zip(names, call.args, strict=False))
    pairs.update({k.arg: k.value for k in call.keywords if k.arg in names})
    return {name: known for name, value in pairs.items() if (known := roles.canonical(value))}


def renamed_event(event: Event, names: dict[str, str]) -> Event:
    """An event of a callee in the words of its caller."""
    subject, target = (names.get(n, n) for n in (event.subject, event.target))
    return Event(
        event.kind, event.node, subject, target, event.guards, event.loops, event.tests
    )  # fmt: skip
