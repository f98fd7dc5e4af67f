"""A checkpoint for a resume contains weights that were cast to float16."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.checkpoints import Entries, entries_of, find_saves, has_optimizer, saved_states
from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=(".half()",),
    also_contains=("save",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 weights beside the state of an optimizer, once per dictionary."""
    if file.project.known and not file.project.resumes:
        return
    seen: set[ast.AST] = set()
    for call in find_saves(file):
        for state in saved_states(file, call):
            entries = entries_of(file, state, call)
            if state in seen or entries is None or not has_optimizer(file, entries):
                continue
            cast = _cast_to_half(entries)
            if cast is not None:
                seen.add(state)
                yield match_at(cast, "Training resumes from these weights, rounded to float16.")


def _cast_to_half(entries: Entries) -> ast.expr | None:
    """Return the first value of a dictionary that ends in ``.half()`` or ``.half().state_dict()``."""
    for _, value in entries:
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and called_name(node) == "half" and not node.args:
                return value
    return None
