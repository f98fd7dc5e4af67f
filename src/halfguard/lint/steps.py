"""Training steps: loops or functions that run a backward pass and an optimizer step.

A step is the innermost loop that contains both. An inner loop over micro-batches contains only the backward
pass, so the step is the loop around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from halfguard.lint.event_reader import Event, EventKind, EventReader

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
