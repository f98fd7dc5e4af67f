"""A gradient norm is read while the gradients are still scaled."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("norm",),
    also_contains=("caler",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find norms of scaled gradients."""
    for step in file.steps:
        for norm in step.find("gradient_norm"):
            scaled = step.before(norm, "scaled_backward")
            if not scaled or step.before(norm, "unscale"):
                continue
            if any(e.kind == "scaler_step" for e in step.between(scaled[0], norm)):
                continue  # the step has unscaled them
            later = step.events[step.events.index(norm) :]
            if any(e.kind == "scaler_step" and not e.excludes(norm) for e in later):
                yield match_at(norm.node, "These gradients are still multiplied by the loss scale.")
