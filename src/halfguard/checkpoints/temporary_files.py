"""Remove the unfinished files of writers that were killed, which may be as large as the checkpoint."""

from __future__ import annotations

import contextlib
import glob
import time
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_YOUNG = 60.0  # seconds: its writer may not have locked it yet


def lock_while_writing(file: BinaryIO) -> None:
    """Mark an open file as being written; the system ends this with the process."""
    with contextlib.suppress(OSError):  # some systems and network file systems have no locks
        _lock(file)


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of ``path`` that no living process writes; where this is unknown, keep them."""
    # The names that records.atomic_write gives them.
    for left in path.parent.glob(f".{glob.escape(path.name[:40])}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime < _YOUNG:
                continue
            with left.open("rb") as file:
                _lock(file)  # raises if it is being written
                left.unlink()


def _lock(file: BinaryIO) -> None:
    if fcntl is None:
        raise OSError("this system has no flock")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
