"""Small files that are there whole or not at all, whatever happens while they are written.

One idea: the bytes go to a temporary file in the same folder, reach the disk, and only then take the
name. A reader, or the next start after a crash, sees the old file or the new one and never a half. It
stands beside the records because every room that keeps one on disk needs it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Content = bytes | str | Callable[[BinaryIO], object]


def write_whole(path: str | os.PathLike[str], data: Content) -> None:
    """Write ``data`` to ``path``, replacing what was there, or raise and change nothing.

    Text is written as UTF-8; a function is given the open file, for what is too large to hold twice.

    A process that is killed inside may leave a ``.name.*.tmp`` file behind; nothing ever reads it.
    """
    path = Path(os.path.realpath(path))  # what a link leads to is replaced, not the link
    temporary = path.parent / f".{path.name[:40]}.{secrets.token_hex(6)}.tmp"
    try:
        # Not the tempfile module: its files are for their owner alone, and a run folder is often shared.
        with temporary.open("xb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # a new file has no mode to keep
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in ``folder`` to the disk, where the system can do that."""
    # Windows and some network file systems cannot; the name is then as safe as that system makes it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
