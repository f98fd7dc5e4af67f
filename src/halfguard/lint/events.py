"""What a training loop does, in order: backward, unscale, clip, step, update, skip.

One idea: a loop is read as a list of events, with the calls it makes to functions of the same module
written out in place. Each event knows the conditions under which it happens, so that two sides of an
``if use_amp`` are never taken for one path.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from halfguard.lint.event import (
    Context,
    Event,
    Kind,
    guard_of,
    leaves,
    renamed_event,
    renaming,
    with_guard,
)
from halfguard.lint.module import Function, Module
from halfguard.lint.names import key, last_name, receiver
from halfguard.lint.roles import Roles

_CLIPS = {"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"}
_INTERESTING = {"backward", "step", "update", "unscale_", "zero_grad", *_CLIPS}
_MAX_DEPTH, _MAX_INLINED = 3, 60


class Events:
    """Reads functions of a module as lists of events."""

    def __init__(self, module: Module, roles: Roles) -> None:
        self.module = module
        self.roles = roles
        self._inlined = 0

    @cached_property
    def _calls_in(self) -> dict[ast.stmt, list[ast.Call]]:
        """The calls that matter, by their statement, in the order in which they are made."""
        found: dict[ast.stmt, list[ast.Call]] = defaultdict(list)
        local = {function.name for function in self.module.functions}
        for call in self.module.calls(*_INTERESTING, *local):
            statement = self.module.statement_of(call)
            if statement is not None:
                found[statement].append(call)
        for calls in found.values():
            calls.sort(key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))
        return found

    @cached_property
    def _local(self) -> dict[tuple[ast.ClassDef | None, str], list[Function]]:
        found: dict[tuple[ast.ClassDef | None, str], list[Function]] = defaultdict(list)
        for function in self.module.functions:
            found[self.module.class_of(function), function.name].append(function)
        return found

    def roots(self) -> list[Function | None]:
        """The module body, and every function that no other function of the module calls."""
        called = {self._callee(c) for calls in self._calls_in.values() for c in calls}
        return [None, *(f for f in self.module.functions if f not in called)]

    def of(self, root: Function | None) -> list[Event]:
        """The events of a function, with its callees written out."""
        self._inlined = 0
        out: list[Event] = []
        body = self.module.tree.body if root is None else root.body
        self._block(body, Context(stack=(root,) if root else ()), out)
        return out

    def _callee(self, call: ast.Call) -> Function | None:
        """The function of this module that a call runs, where there can be only one."""
        name = key(call.func)
        owner = self.module.class_of(call) if name.startswith("self.") else None
        candidates = self._local.get((owner, name.removeprefix("self.")), [])
        return candidates[0] if len(candidates) == 1 else None

    # --- statements --------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt], context: Context, out: list[Event]) -> None:
        for statement in statements:
            self._statement(statement, context, out)
            if isinstance(statement, ast.If) and not statement.orelse and leaves(statement.body):
                # What follows a guard that leaves is its other side.
                text, truth = guard_of(statement.test)
                context = with_guard(context, (text, not truth), statement.test)

    def _statement(self, node: ast.stmt, context: Context, out: list[Event]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        for call in self._calls_in.get(node, ()):
            self._call(call, context, out)
        if isinstance(node, ast.If):
            text, truth = guard_of(node.test)
            self._block(node.body, with_guard(context, (text, truth), node.test), out)
            self._block(node.orelse, with_guard(context, (text, not truth), node.test), out)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            inside = Context(context.guards, (*context.loops, node), context.tests, context.stack)
            self._block(node.body, inside, out)
            self._block(node.orelse, context, out)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._block(node.body, context, out)
        elif isinstance(node, ast.Try):
            self._try(node, context, out)
        elif isinstance(node, ast.Match):
            for number, case in enumerate(node.cases):
                guard = (f"match {node.lineno}:{number}", True)
                self._block(case.body, with_guard(context, guard, node.subject), out)
        elif isinstance(node, ast.Continue | ast.Return):
            kind: Kind = "continue" if isinstance(node, ast.Continue) else "return"
            out.append(self._event(kind, node, context))

    def _try(self, node: ast.Try, context: Context, out: list[Event]) -> None:
        self._block(node.body + node.orelse, context, out)
        for handler in node.handlers:
            guard = (f"except {handler.lineno}", True)
            self._block(handler.body, with_guard(context, guard, None), out)
        self._block(node.finalbody, context, out)

    # --- calls -------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, context: Context, out: list[Event]) -> None:
        kind = self._kind(call)
        if kind is not None:
            owner = receiver(call)
            if kind == "scaled_backward" and isinstance(owner, ast.Call):
                owner = receiver(owner)
            target = self.roles.canonical(call.args[0]) if call.args else ""
            out.append(
                self._event(kind, call, context, subject=self.roles.canonical(owner), target=target)
            )
            return
        callee = self._callee(call)
        if callee is None or callee in context.stack or len(context.stack) > _MAX_DEPTH:
            return
        self._inlined += 1
        if self._inlined > _MAX_INLINED:
            return
        stack = (*context.stack, callee)
        inner: list[Event] = []
        self._block(
            callee.body, Context(context.guards, context.loops, context.tests, stack), inner
        )
        renamed = renaming(call, callee, self.roles)
        out.extend(renamed_event(event, renamed) for event in inner)

    def _kind(self, call: ast.Call) -> Kind | None:
        name, owner, roles = last_name(call), receiver(call), self.roles
        if name in _CLIPS:
            return "clip"
        if owner is None:
            return None
        if name == "backward":
            return self._backward(call, owner)
        if roles.is_scaler(owner):
            steps: dict[str, Kind] = {
                "step": "scaler_step", "update": "scaler_update", "unscale_": "unscale",
            }  # fmt: skip
            return steps.get(name)
        if name == "step" and roles.is_scheduler(owner):
            return "scheduler_step"
        if name in {"step", "zero_grad"} and roles.is_optimizer(owner):
            return "optimizer_step" if name == "step" else "zero_grad"
        return None

    def _backward(self, call: ast.Call, owner: ast.expr) -> Kind | None:
        if isinstance(owner, ast.Call):
            if last_name(owner) == "scale":
                return "scaled_backward" if self.roles.is_scaler(receiver(owner)) else None
            return "backward" if last_name(owner) != "super" else None
        if call.args:  # accelerator.backward(loss), engine.backward(loss)
            return "framework_backward"
        bound = self.module.latest(owner)
        if bound and isinstance(bound.value, ast.Call) and last_name(bound.value) == "scale":
            return "scaled_backward"
        return "backward" if key(owner) != "self" else None

    def _event(
        self, kind: Kind, node: ast.Call | ast.stmt, context: Context, *, subject: str = "",
        target: str = "",
    ) -> Event:  # fmt: skip
        if kind == "scaled_backward" and subject not in self.roles.scalers:
            subject = next(iter(sorted(self.roles.scalers)), "")
        return Event(kind, node, subject, target, context.guards, context.loops, context.tests)
