"""The result of running the ``halfguard`` program in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class CommandResult(NamedTuple):
    exit_code: object
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, without line breaks."""
        return " ".join(self.out.split())


Run = Callable[..., CommandResult]
