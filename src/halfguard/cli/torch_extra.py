"""Commands that need torch: without it they print the pip command instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfguard.errors import MissingExtraError

_TORCH = ("torch", "safetensors", "numpy")
_MODULES = {
    "torch": _TORCH,
    "validate": (*_TORCH, "scipy"),
    "trackers": ("numpy", "scipy"),
}


@contextmanager
def torch_needed(command: str, extra: str = "torch") -> Iterator[None]:
    """Turn a missing package into a ``MissingExtraError`` that names ``extra``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _MODULES[extra]:
            raise
        raise MissingExtraError(command, extra) from error
