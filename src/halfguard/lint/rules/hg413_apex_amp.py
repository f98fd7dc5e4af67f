"""Mixed precision uses apex.amp."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("apex",),
    once=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find the entry point of apex.amp."""
    for call in file.calls("initialize"):
        if file.full_name(call.func) == "apex.amp.initialize":
            yield match_at(call, "apex.amp is no longer developed.")
