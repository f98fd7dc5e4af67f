"""`scaler.update()` is called without an inf check before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.steps import Event

META = Meta(
    contains=("caler",),
    also_contains=(".step(",),
)
_ACCUMULATES = re.compile(r"%|accum")


def check(file: PythonFile) -> Iterator[Match]:
    """Find updates without an inf check."""
    for step in file.steps:
        if not step.has("scaler_step"):
            continue
        for update in step.find("scaler_update"):
            call = update.node
            if not isinstance(call, ast.Call) or call.args or call.keywords:
                continue  # update(new_scale) needs no check
            if called_name(call) != "update" or not step.before(update, "scaled_backward"):
                continue
            checks = step.before(update, "scaler_step", "unscale")
            if not checks:
                yield match_at(call, "update() raises here: neither unscale_ nor step has run.")
            elif all(_is_rarer(check, update) for check in checks):
                yield match_at(call, "update() raises in a micro-batch without a step: put it under "
                               "the step's condition.")  # fmt: skip


def _is_rarer(check: Event, update: Event) -> bool:
    """Return whether an inf check depends on a schedule of accumulation that the update does not."""
    return any(
        _ACCUMULATES.search(text) and (text, truth) not in update.conditions
        for text, truth in check.conditions
    )
