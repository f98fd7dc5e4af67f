"""A progress bar on stderr. It is shown in a terminal, never in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Bar:
    """A progress bar that shows nothing."""

    def advance(self) -> None:
        """Count one step."""

    def describe(self, text: str) -> None:
        """Change the text in front of the bar."""


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Bar]:
    """Show a bar while the block runs; without ``total`` it has no end."""
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

            def describe(self, text: str) -> None:
                shown.update(task, description=text)

        yield Shown()
