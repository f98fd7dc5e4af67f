"""A command that needs torch says so with the pip command, not with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfguard.errors import MissingExtraError


@contextmanager
def torch_needed(command: str) -> Iterator[None]:
    """Around the imports of a command's instrument."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise MissingExtraError(command, "torch") from error
