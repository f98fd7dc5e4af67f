"""A repair: an edit of the source at one line, made where it is certain, and the patch of it.

A repair gets the file and the line. It adds edits to the file, or none if the source is written in a way that
it does not know for certain; then the patch is empty. The result is parsed, and a repair never writes a call
that is already there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec

from halfguard.repairs.source_file import Place, SourceFile

P = ParamSpec("P")


class Repair(Generic[P]):
    """An edit of a file at a line; called with a place, it returns the unified diff."""

    def __init__(self, edit: Callable[Concatenate[SourceFile, int, P], None]) -> None:
        self.edit = edit
        self.__doc__ = edit.__doc__

    def __call__(self, place: Place | None, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the patch of the file of a place; empty if nothing is certain."""
        return self.with_places(place, *args, **kwargs)[0]

    def with_places(
        self, place: Place | None, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[str, list[Place]]:
        """Return the patch, and the lines that the repair names."""
        file = None if place is None else SourceFile.read(place[0])
        if place is None or file is None:
            return "", []
        self.edit(file, place[1], *args, **kwargs)
        patch = file.patch()
        return patch, [(file.path, line) for line in file.changed] if patch else []
