"""The rows of a table of costs, and how they are printed: as Markdown, for the page on scale."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Row = dict[str, float]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Table:
    """Measured points; the first column is the size."""

    title: str
    rows: list[Row]

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]

    def __str__(self) -> str:
        names = list(self.rows[0])
        lines = [_line(names), _line(["---"] * len(names))]
        lines += [_line([_number(value) for value in row.values()]) for row in self.rows]
        return "\n".join([f"### {self.title}", "", *lines, ""])


def timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Return the processor seconds of this process for ``work``, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def in_new_process(module: str, *arguments: object) -> str:
    """Run a module with ``arguments`` and return the last line that it prints."""
    command: Sequence[str] = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return done.stdout.splitlines()[-1]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.3g}"
        if value < 1000
        else f"{value:,.0f}"
    )
