"""Training steps: the loops, or the functions, that run a backward pass and an optimizer step.

One idea: the step belongs to the innermost loop that holds both. An inner loop over micro-batches has
the backward pass alone; what follows it belongs to the loop around.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from halfguard.lint.event import Event, Kind
from halfguard.lint.events import Events

_BACKWARD: tuple[Kind, ...] = ("backward", "scaled_backward")
_STEPS: tuple[Kind, ...] = ("scaler_step", "optimizer_step")


@dataclass(frozen=True)
class Step:
    """The events of one training step in order; ``loop`` is None where a function is one step."""

    loop: ast.stmt | None
    events: tuple[Event, ...]

    def of(self, *kinds: Kind) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.kind in kinds]

    def has(self, *kinds: Kind) -> bool:
        """Whether any event is of these kinds."""
        return any(event.kind in kinds for event in self.events)

    def between(self, first: Event, last: Event) -> Iterator[Event]:
        """The events after one and before another that may happen in the same pass as both."""
        begin, end = self.events.index(first), self.events.index(last)
        for event in self.events[begin + 1 : end]:
            if not (event.excludes(first) or event.excludes(last)):
                yield event

    def before(self, last: Event, *kinds: Kind) -> list[Event]:
        """The events of these kinds that may have happened when an event happens, latest first."""
        earlier = self.events[: self.events.index(last)]
        return [e for e in reversed(earlier) if e.kind in kinds and not e.excludes(last)]

    def inner_loops(self, event: Event) -> tuple[ast.stmt, ...]:
        """The loops between this step's own and an event."""
        if self.loop is None:
            return event.loops
        return event.loops[event.loops.index(self.loop) + 1 :]


def find_steps(reader: Events) -> list[Step]:
    """Every training step of a module, each once."""
    found: dict[tuple[int, ...], Step] = {}
    for root in reader.roots():
        events = reader.of(root)
        for loop in _step_loops(events):
            inside = tuple(e for e in events if loop is None or loop in e.loops)
            if any(e.kind == "framework_backward" for e in inside):
                continue
            found.setdefault(tuple(id(e.node) for e in inside), Step(loop, inside))
    return list(found.values())


def _step_loops(events: list[Event]) -> list[ast.stmt | None]:
    """The loop of each step, found from its optimizer step and, without one, from its backward."""
    backwards = [e for e in events if e.kind in _BACKWARD]
    steps = [e for e in events if e.kind in _STEPS]
    loops: list[ast.stmt | None] = []
    for event in steps or backwards:
        holding = (
            loop for loop in reversed(event.loops) if any(loop in b.loops for b in backwards)
        )
        loop = next(holding, None)
        if backwards and loop not in loops:
            loops.append(loop)
    # A function that is one step is none where a loop of it already is.
    return [loop for loop in loops if loop is not None] or loops
