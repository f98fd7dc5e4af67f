"""Leave a process with an answer, from anywhere inside the script, and tell the parent about progress.

``os._exit`` runs no handler of the script: neither its ``except`` nor its ``finally``. What the parent knows
if the process is interrupted is the last progress, written about twice a second.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from halfguard.investigation.passes import PassResult

_INTERVAL = 0.5  # seconds between two reports


def leave(path: str, result: PassResult) -> NoReturn:
    """Write the answer and end the process."""
    temporary = Path(f"{path}.part")
    temporary.write_text(result.model_dump_json(), "utf-8")
    temporary.rename(path)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(0)


class ProgressFile:
    """Writes an unfinished answer beside the answer, at most every half second."""

    def __init__(self, answer: str) -> None:
        self._path = Path(f"{answer}.progress")
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        """True if the last report is half a second old."""
        return time.monotonic() >= self._due

    def write(self, result: PassResult) -> None:
        """Replace the last report."""
        self._due = time.monotonic() + _INTERVAL
        temporary = self._path.with_suffix(".part")
        temporary.write_text(result.model_dump_json(), "utf-8")
        temporary.rename(self._path)


def read_result(path: Path) -> PassResult | None:
    """Read an answer or a report; None if there is none."""
    try:
        return PassResult.model_validate_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
