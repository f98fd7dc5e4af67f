"""Training steps: loops or functions that run a backward pass and an optimizer step.

A step is the innermost loop that contains both. An inner loop over micro-batches contains only the backward
pass, so the step is the loop around it.

Calls to functions of the same file are inlined. Each event keeps the conditions under which it runs, so that
the two branches of an ``if use_amp`` never count as one path.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from halfguard.lint.conditions import Condition, condition_of
from halfguard.lint.expressions import argument, called_name, name_of, receiver
from halfguard.lint.roles import Roles
from halfguard.lint.syntax_tree import Function, SyntaxTree, parameter_names

EventKind = Literal[
    "backward", "scaled_backward", "framework_backward", "unscale", "clip", "zero_grad", "scaler_step",
    "scaler_update", "optimizer_step", "continue", "return", "break",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Event:
    """One operation of a training step, and when it runs."""

    kind: EventKind
    node: ast.Call | ast.stmt
    owner: str  # name of the scaler, or of the optimizer that is stepped directly
    optimizer: str  # name of the optimizer that is passed to ``unscale_`` or ``scaler.step``
    conditions: tuple[Condition, ...]
    loops: tuple[ast.stmt, ...]
    tests: tuple[ast.expr, ...]  # the expressions behind the conditions

    @property
    def owner_name(self) -> str:
        """The owner as it is written, without the function that it belongs to."""
        return _written(self.owner)

    @property
    def optimizer_name(self) -> str:
        """The optimizer as it is written."""
        return _written(self.optimizer)

    def excludes(self, other: Event) -> bool:
        """Return whether the two can never run in the same iteration."""
        mine = dict(self.conditions)
        return any(mine.get(text, truth) != truth for text, truth in other.conditions)

    def shares_loop(self, other: Event) -> bool:
        """Return whether the innermost loop of one is around the other, too, or one is in no loop."""
        if not self.loops or not other.loops:
            return True
        return self.loops[-1] in other.loops or other.loops[-1] in self.loops


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


_IN = " in "  # between a local name and its function


def _written(name: str) -> str:
    return name.partition(_IN)[0]


_CLIPS = {"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"}
_STEP_METHODS = {"backward", "step", "update", "unscale_", "zero_grad", *_CLIPS}
_INFINITE = {"float('inf')", "math.inf", "torch.inf", "np.inf", "inf"}
_MAX_DEPTH, _MAX_INLINED = 3, 60


class EventReader:
    """Reads the functions of a file as lists of events."""

    def __init__(self, tree: SyntaxTree, roles: Roles) -> None:
        self.tree = tree
        self.roles = roles
        self._inlined = 0

    @cached_property
    def _calls_in(self) -> dict[ast.stmt, list[ast.Call]]:
        """Relevant calls by statement, in the order in which they run."""
        found: dict[ast.stmt, list[ast.Call]] = defaultdict(list)
        names = {function.name for function in self.tree.functions} | _STEP_METHODS
        names |= {n for n in self.tree.called_names if n.endswith("scaler")}
        for call in self.tree.calls(*names):
            statement = self.tree.statement_of(call)
            if statement is not None:
                found[statement].append(call)
        for calls in found.values():
            calls.sort(key=lambda c: (c.end_lineno or 0, c.end_col_offset or 0))
        return found

    def entry_points(self) -> list[Function | None]:
        """Return the functions that no other function of the file calls; None is the module body."""
        called = {self.tree.local_function(c) for calls in self._calls_in.values() for c in calls}
        return [None, *(f for f in self.tree.functions if f not in called and f in self._relevant)]

    @cached_property
    def _relevant(self) -> set[Function | None]:
        """Functions with an operation of a step, and those that call them, over a few levels."""
        callers: dict[Function | None, set[Function | None]] = defaultdict(set)
        found: set[Function | None] = set()
        for calls in self._calls_in.values():
            for call in calls:
                here, callee = self.tree.function_of(call), self.tree.local_function(call)
                if callee is not None:
                    callers[callee].add(here)
                if called_name(call) in _STEP_METHODS or self._is_whole_step(call):
                    found.add(here)
        latest = found
        for _ in range(_MAX_DEPTH + 1):
            latest = {caller for function in latest for caller in callers[function]} - found
            found |= latest
        return found

    def read(self, function: Function | None) -> list[Event]:
        """Return the events of a function, with the functions that it calls inlined."""
        self._inlined = 0
        out: list[Event] = []
        body = self.tree.root.body if function is None else function.body
        self._block(body, Context(stack=(function,) if function else ()), out)
        return out

    # --- statements --------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt], context: Context, out: list[Event]) -> None:
        for statement in statements:
            self._statement(statement, context, out)
            if isinstance(statement, ast.If) and not statement.orelse and _exits(statement.body):
                # The rest of the block runs only if the test fails.
                text, truth = condition_of(statement.test)
                context = context.under((text, not truth), statement.test)

    def _statement(self, node: ast.stmt, context: Context, out: list[Event]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        for call in self._calls_in.get(node, ()):
            self._call(call, context, out)
        if isinstance(node, ast.If):
            text, truth = condition_of(node.test)
            self._block(node.body, context.under((text, truth), node.test), out)
            self._block(node.orelse, context.under((text, not truth), node.test), out)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self._block(node.body, replace(context, loops=(*context.loops, node)), out)
            self._block(node.orelse, context, out)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._block(node.body, context, out)
        elif isinstance(node, ast.Try):
            self._try(node, context, out)
        elif isinstance(node, ast.Match):
            for number, case in enumerate(node.cases):
                condition = (f"match {node.lineno}:{number}", True)
                self._block(case.body, context.under(condition, node.subject), out)
        elif isinstance(node, ast.Continue | ast.Return | ast.Break):
            kinds: dict[type[ast.stmt], EventKind] = {
                ast.Continue: "continue",
                ast.Return: "return",
            }
            out.append(self._event(kinds.get(type(node), "break"), node, context))

    def _try(self, node: ast.Try, context: Context, out: list[Event]) -> None:
        self._block(node.body + node.orelse, context, out)
        for handler in node.handlers:
            condition = (f"except {handler.lineno}", True)
            self._block(handler.body, context.under(condition, None), out)
        self._block(node.finalbody, context, out)

    # --- calls -------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, context: Context, out: list[Event]) -> None:
        if self._is_whole_step(call):
            kinds: tuple[EventKind, ...] = ("scaled_backward", "scaler_step", "scaler_update")
            names = {"owner": name_of(call.func), "optimizer": name_of(call.args[1])}
            out.extend(self._event(kind, call, context, **names) for kind in kinds)
            return
        kind = self._kind(call)
        if kind is not None:
            receiving = receiver(call)
            if kind == "scaled_backward" and isinstance(receiving, ast.Call):
                receiving = receiver(receiving)
            owner = self.roles.resolve_alias(receiving)
            optimizer = self.roles.resolve_alias(call.args[0]) if call.args else ""
            out.append(self._event(kind, call, context, owner=owner, optimizer=optimizer))
            return
        callee = self.tree.local_function(call)
        if callee not in self._relevant or callee in context.stack:
            return
        if callee is None or len(context.stack) > _MAX_DEPTH:
            return
        self._inlined += 1
        if self._inlined > _MAX_INLINED:
            return
        inner: list[Event] = []
        self._block(callee.body, replace(context, stack=(*context.stack, callee)), inner)
        names = self._local_names(callee) | _caller_names(call, callee, self.roles)
        out.extend(
            replace(
                event,
                owner=names.get(event.owner, event.owner),
                optimizer=names.get(event.optimizer, event.optimizer),
            )
            for event in inner
        )

    def _local_names(self, function: Function) -> dict[str, str]:
        """Map the names that a function assigns to names that no other function has."""
        assigned = self.tree.assignments.items()
        own = (n for n, all_of in assigned if any(a.function is function for a in all_of))
        return {name: f"{name}{_IN}{function.name}" for name in own if "." not in name}

    def _is_whole_step(self, call: ast.Call) -> bool:
        """Return whether a call runs the whole step, as timm's ``loss_scaler(loss, optimizer)``."""
        is_scaler = called_name(call).endswith("scaler") and len(call.args) > 1
        return is_scaler and self.roles.is_optimizer(call.args[1])

    def _kind(self, call: ast.Call) -> EventKind | None:
        name, owner, roles = called_name(call), receiver(call), self.roles
        if name in _CLIPS:
            return None if self._never_clips(call) else "clip"
        if name == "zero_grad":
            return "zero_grad"
        if owner is None:
            return None
        if name == "backward":
            return self._backward_kind(call, owner)
        if roles.is_scaler(owner):
            kinds: dict[str, EventKind] = {
                "step": "scaler_step", "update": "scaler_update", "unscale_": "unscale",
            }  # fmt: skip
            return kinds.get(name)
        return "optimizer_step" if name == "step" and roles.is_optimizer(owner) else None

    def _never_clips(self, call: ast.Call) -> bool:
        """Return whether ``clip_grad_norm_`` only measures, because its limit is infinite."""
        limit = argument(call, 1, "max_norm")
        return limit is not None and ast.unparse(limit).strip("'\"") in _INFINITE

    def _backward_kind(self, call: ast.Call, owner: ast.expr) -> EventKind | None:
        if isinstance(owner, ast.Call):
            # also inside of another call: cast(Tensor, scaler.scale(loss)).backward()
            inner = [n for n in ast.walk(owner) if isinstance(n, ast.Call)]
            scaled = [n for n in inner if called_name(n) == "scale"]
            if any(self.roles.is_scaler(receiver(n)) for n in scaled):
                return "scaled_backward"
            return "backward" if owner not in scaled and called_name(owner) != "super" else None
        if call.args:  # accelerator.backward(loss), engine.backward(loss)
            return "framework_backward"
        assigned = self.tree.last_assignment(owner)
        value = assigned.value if assigned else None
        if isinstance(value, ast.Call) and called_name(value) == "scale":
            return "scaled_backward"
        return "backward" if name_of(owner) != "self" else None

    def _event(
        self, kind: EventKind, node: ast.Call | ast.stmt, context: Context, *, owner: str = "",
        optimizer: str = "",
    ) -> Event:  # fmt: skip
        if kind == "scaled_backward" and owner not in self.roles.scalers:
            owner = next(iter(sorted(self.roles.scalers)), "")
        return Event(
            kind, node, owner, optimizer, context.conditions, context.loops, context.tests
        )  # fmt: skip


def _exits(body: list[ast.stmt]) -> bool:
    """Return whether a block ends by leaving the code that follows it."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def _caller_names(call: ast.Call, callee: Function, roles: Roles) -> dict[str, str]:
    """Map the callee's parameters to the names of the variables that the caller passes."""
    names = [n for n in parameter_names(callee) if n != "self"]
    passed = dict(zip(names, call.args, strict=False))
    passed.update({k.arg: k.value for k in call.keywords if k.arg in names})
    return {name: known for name, value in passed.items() if (known := roles.resolve_alias(value))}


_BACKWARD: tuple[EventKind, ...] = ("backward", "scaled_backward")
_STEPS: tuple[EventKind, ...] = ("scaler_step", "optimizer_step")


@dataclass(frozen=True)
class Step:
    """The events of one training step in order; ``loop`` is None if a whole function is one step."""

    loop: ast.stmt | None
    events: tuple[Event, ...]

    def find(self, *kinds: EventKind) -> list[Event]:
        """Return the events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def has(self, *kinds: EventKind) -> bool:
        return any(event.kind in kinds for event in self.events)

    def between(self, first: Event, last: Event) -> Iterator[Event]:
        """Yield the events between two others that can run in the same iteration as both."""
        begin, end = self.events.index(first), self.events.index(last)
        for event in self.events[begin + 1 : end]:
            if not (event.excludes(first) or event.excludes(last)):
                yield event

    def before(self, last: Event, *kinds: EventKind) -> list[Event]:
        """Return the events of these kinds that can run before an event, latest first."""
        earlier = self.events[: self.events.index(last)]
        return [e for e in reversed(earlier) if e.kind in kinds and not e.excludes(last)]

    def inner_loops(self, event: Event) -> tuple[ast.stmt, ...]:
        """Return the loops around an event that are inside the loop of this step."""
        if self.loop is None:
            return event.loops
        return event.loops[event.loops.index(self.loop) + 1 :]


def find_steps(reader: EventReader) -> list[Step]:
    """Return every training step of a file, each once."""
    found: dict[tuple[int, ...], Step] = {}
    for function in reader.entry_points():
        events = reader.read(function)
        for loop in _step_loops(events):
            inside = tuple(e for e in events if loop is None or loop in e.loops)
            if any(e.kind == "framework_backward" for e in inside):
                continue
            found.setdefault(tuple(id(e.node) for e in inside), Step(loop, inside))
    return list(found.values())


def _step_loops(events: list[Event]) -> list[ast.stmt | None]:
    """Return the loop of each optimizer step; without one, the loop of each backward pass."""
    backwards = [e for e in events if e.kind in _BACKWARD]
    steps = [e for e in events if e.kind in _STEPS]
    loops: list[ast.stmt | None] = []
    for event in steps or backwards:
        loops_with_both = (
            loop for loop in reversed(event.loops) if any(loop in b.loops for b in backwards)
        )
        loop = next(loops_with_both, None)
        # A helper that steps the scaler is one step, even if its caller runs the backward pass.
        if (backwards or event.kind == "scaler_step") and loop not in loops:
            loops.append(loop)
    # A whole function counts as a step only if none of its loops does.
    return [loop for loop in loops if loop is not None] or loops
