"""A lock on a folder of snapshots: two guards in one folder would restore each other's weights.

The lock is the operating system's (``flock``). It ends with its process, so a killed run leaves no lock: the
next run takes over its file. The file names host and process of its owner, for the error message.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import socket
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("halfguard")

_held: set[int] = set()  # file descriptors of this process


class FolderLock:
    """A lock that one guard holds at a time, in any process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._release: weakref.finalize[..., FolderLock] | None = None

    def acquire(self) -> str:
        """Take the lock and return "", or return a description of its owner.

        Without locks (read-only folder, some network file systems) a warning is logged instead.
        """
        try:
            if self._take():
                return ""
            gc.collect()  # a guard that was dropped without close() may wait for this
            return "" if self._take() else self._owner()
        except OSError as error:
            logger.warning(
                "%s cannot be locked: %s. Make sure that no other run writes snapshots there.",
                self._path,
                error,
            )
            return ""

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def _take(self) -> bool:
        if fcntl is None:
            raise OSError("this system has no flock")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The owner may have removed the file just before it let go.
                current = self._path.exists() and os.path.samestat(
                    os.fstat(file), self._path.stat()
                )
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:
                os.close(file)
                raise
            if current:
                break
            os.close(file)
        _held.add(file)
        self._release = weakref.finalize(self, _unlock, file, self._path, os.getpid())
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the text
            os.ftruncate(file, 0)
            os.write(file, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        return True

    def _owner(self) -> str:
        try:
            owner = json.loads(self._path.read_text())
            host, pid = owner["host"], owner["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"
        if (host, pid) == (socket.gethostname(), os.getpid()):
            return "another guard of this process"
        return f"process {pid} on {host}"


def _unlock(file: int, path: Path, pid: int) -> None:
    if os.getpid() != pid:
        return
    _held.discard(file)
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        os.close(file)


def _close_in_child() -> None:
    """Close inherited files: a data loader that outlives its parent must not keep the lock."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
