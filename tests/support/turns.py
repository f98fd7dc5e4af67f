"""Let a test run while no other test does: the workers of pytest-xdist take turns.

Most tests can run beside any other. A test that measures wall time, or fills the machine with processes, is
marked ``alone``: it starts when the other workers have finished their tests, and they wait until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

_QUEUE, _MACHINE = 0, 1  # two bytes of the file, locked one by one


class Turns:
    """Locks in a file that all workers of one run share; the system releases those of a dead worker."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a+b")

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Wait until the test may run, and hold its turn while it runs."""
        self._lock(_QUEUE, fcntl.LOCK_EX)
        self._lock(_MACHINE, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:  # who is alone keeps the queue, so that nobody overtakes
            self._lock(_QUEUE, fcntl.LOCK_UN)
        try:
            yield
        finally:
            self._lock(_MACHINE, fcntl.LOCK_UN)
            self._lock(_QUEUE, fcntl.LOCK_UN)

    def _lock(self, byte: int, operation: int) -> None:
        fcntl.lockf(self._file, operation, 1, byte)
