"""What a process said last: the end of a log, however long that is."""

from __future__ import annotations

import os
from pathlib import Path

_MOST = 300  # characters that fit into a reason


def last_words(log: Path) -> str:
    """The last line of ``log`` that is not empty: of a traceback, the error itself."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 4 * _MOST))  # a character has at most four bytes
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip()[-_MOST:] if lines else ""
