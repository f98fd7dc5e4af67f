"""A file could not be checked."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=(),
)


def check(file: PythonFile) -> Iterator[Match]:  # noqa: ARG001
    """Yield nothing: the engine reports this rule when it cannot read a file."""
    yield from ()
