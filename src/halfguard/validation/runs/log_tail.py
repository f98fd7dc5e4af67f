"""Describe how a process ended, with the last line of its log."""

from __future__ import annotations

import os
from pathlib import Path

_MAX_CHARACTERS = 300  # in a failure message


def describe_exit(code: int, log: Path) -> str:
    """Return the signal or exit code, and the last line of ``log`` if there is one."""
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    line = last_line(log)
    return f"{how}: {line}" if line else how


def last_line(log: Path) -> str:
    """Return the last line that is not empty: in a traceback, the error itself."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        # A character has at most four bytes.
        file.seek(max(0, file.tell() - 4 * _MAX_CHARACTERS))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-_MAX_CHARACTERS:] if lines else ""
