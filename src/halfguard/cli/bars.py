"""A progress bar on stderr for work that takes seconds: shown to a terminal, never to a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Bar:
    """Counts steps; ``say`` changes the words in front. The base class shows nothing."""

    def advance(self) -> None:
        """One step more."""

    def say(self, text: str) -> None:
        """What is being done now."""


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Bar]:
    """Show a bar of ``total`` steps, or one without an end, while the block runs."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn, Progress  # noqa: PLC0415

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total)

        class Shown(Bar):
            def advance(self) -> None:
                shown.advance(task)

            def say(self, text: str) -> None:
                shown.update(task, description=text)

        yield Shown()
