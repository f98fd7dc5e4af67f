"""One program in this process, as ``python program.py`` runs it, and what is known afterwards."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.casebook.results import Alarm


@dataclass
class Program:
    """A program to be run once; ``error`` is what ended it."""

    path: Path
    log: Path
    error: BaseException | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Run it to its end. What it raises is kept, not passed on."""
        sys.argv = [str(self.path)]
        sys.path[0] = str(self.path.parent)
        try:
            runpy.run_path(str(self.path), run_name="__main__")
        except SystemExit as error:
            self.error = error if error.code else None
        except BaseException as error:  # noqa: BLE001 - Ctrl-C of a program is its end too
            self.error = error
            traceback.print_exc()

    @property
    def crash_line(self) -> int | None:
        """The innermost line of the program in the traceback."""
        if self.error is None:
            return None
        frames = traceback.extract_tb(self.error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        return own[-1] if own else None

    def printed(self) -> str:
        sys.stdout.flush()
        return self.log.read_text("utf-8", errors="replace")


Instrument = Callable[[Program], list[Alarm]]
