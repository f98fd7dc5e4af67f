"""A command that needs torch says so with the pip command, not with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfguard.errors import MissingExtraError

_MODULES = {"torch": ("torch",), "validate": ("torch", "numpy", "scipy")}


@contextmanager
def torch_needed(command: str, extra: str = "torch") -> Iterator[None]:
    """Around the imports of a command's instrument; ``extra`` is what brings all that they need."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _MODULES[extra]:
            raise
        raise MissingExtraError(command, extra) from error
