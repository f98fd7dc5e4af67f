"""Progress on stderr.

It is a bar in a terminal, else a plain line now and then, for logs and CI.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST, EVERY = 10.0, 30.0  # seconds until the first plain line, and between two of them


class Bar:
    """The progress of a command, as plain lines; a command that ends soon prints none."""

    def __init__(self, text: str, total: int | None = None) -> None:
        self.text, self.total, self.done = text, total, 0
        self._start = time.monotonic()
        self._due = self._start + FIRST

    def advance(self, count: int = 1) -> None:
        """Count finished steps."""
        self.done += count
        self.tick()

    def describe(self, text: str) -> None:
        """Change the text in front of the count."""
        self.text = text
        self.tick()

    def begin(self, text: str) -> None:
        """Change the text at the beginning of a stage, and print it at once."""
        self.text = text
        self._due = 0.0
        self.tick()
        self._due = min(self._due, time.monotonic() + FIRST)

    def tick(self) -> None:
        """Print a line if it is time for one."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + EVERY
            sys.stderr.write(f"{self.line()}\n")
            sys.stderr.flush()

    def line(self) -> str:
        """Return the progress as text: what, how much of it, and since when."""
        seconds = int(time.monotonic() - self._start)
        most = "" if self.total is None else f" of {self.total}"
        count = f": {self.done}{most}" if self.done or most else ""
        return f"{self.text}{count}, {seconds // 60}:{seconds % 60:02d}"


@contextmanager
def progress(text: str, total: int | None = None, *, alive: bool = True) -> Iterator[Bar]:
    """Show the progress while the block runs; without ``total`` it has no end.

    ``alive`` shows it during long steps too, from a thread; a command that forks does without.
    """
    if sys.stderr.isatty():
        with _terminal_bar(text, total, alive=alive) as bar:
            yield bar
        return
    bar, ended = Bar(text, total), threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            bar.tick()

    if alive:
        threading.Thread(target=watch, name="halfguard-progress", daemon=True).start()
    try:
        yield bar
    finally:
        ended.set()


@contextmanager
def _terminal_bar(text: str, total: int | None, *, alive: bool) -> Iterator[Bar]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: PLC0415

    text_and_bar = Progress.get_default_columns()[:2]
    columns = (
        (*text_and_bar, TimeElapsedColumn())  # it has no end
        if total is None
        else (*Progress.get_default_columns(), MofNCompleteColumn())
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=alive) as shown:
        task = shown.add_task(text, total=total)

        class Shown(Bar):
            def tick(self) -> None:
                shown.update(task, description=self.text, completed=self.done, refresh=not alive)

        yield Shown(text, total)
