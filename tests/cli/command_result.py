"""The result of running the ``halfguard`` program in a test."""

from __future__ import annotations

from typing import NamedTuple


class CommandResult(NamedTuple):
    exit_code: object
    out: str
    err: str
