"""Ctrl-C that lets a command finish its step and keep what it has; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Is ``requested`` after the first Ctrl-C."""

    requested = False


@contextmanager
def first_interrupt(what_happens: str) -> Iterator[Interrupt]:
    """Note the first Ctrl-C in the block and say ``what_happens``, instead of raising KeyboardInterrupt."""
    found = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        found.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr.write(f"\nInterrupted: {what_happens}. Ctrl-C again ends at once.\n")
        sys.stderr.flush()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, before)
