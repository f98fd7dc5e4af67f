"""Write small files atomically: a file is complete or absent, even after a crash.

The bytes go to a temporary file in the same folder and are flushed to disk; only then is the file
renamed. A reader, or the next start after a crash, sees the old file or the new one, never a part. This
module is part of ``records`` because every package that writes a record needs it.
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


def write_atomically(path: str | os.PathLike[str], data: Content) -> None:
    """Write ``data`` to ``path``, replacing an existing file, or raise and change nothing.

    Text is written as UTF-8. A function is called with the open file, for data too large to copy.

    A process that is killed meanwhile may leave a ``.name.*.tmp`` file, which nothing reads.
    """
    path = Path(os.path.realpath(path))  # replace the target of a link, not the link
    temporary = path.parent / f".{path.name[:40]}.{secrets.token_hex(6)}.tmp"
    try:
        # Not the tempfile module: only the owner can read its files, and run folders are often shared.
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
    """Flush the file names in ``folder`` to disk, where the system supports it."""
    # Windows and some network file systems do not; then we rely on the file system.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
