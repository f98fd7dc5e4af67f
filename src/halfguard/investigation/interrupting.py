"""Ctrl-C, pressed once: the present pass is ended, no other one begins, and the answer tells what is known.

A signal that arrives between two passes, while files are copied or cures are listed, must not lose what is
known, so it raises nothing. Pressed twice, it does what it did before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed, and during what."""

    during: str = ""
    _pressed: bool = False

    def has_come(self) -> bool:
        """Return whether it was pressed; a method, because a signal changes it at any time."""
        return self._pressed

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Note the first Ctrl-C inside the block; nothing is changed if the program ignores it."""
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or before in (signal.SIG_IGN, None):
            yield
            return

        def press(_number: int, _frame: Any) -> None:
            self._pressed = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
