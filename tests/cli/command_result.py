"""The result of running the ``halfguard`` program in a test, and a way to run it in a new process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.programs import captured


class CommandResult(NamedTuple):
    exit_code: object
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, without line breaks."""
        return " ".join(self.out.split())


Run = Callable[..., CommandResult]


def in_a_process(*arguments: object, before: str = "pass", stdin: str = "") -> CommandResult:
    """Run the program in a new process, in this folder; it executes a statement first."""
    code = f"import atexit, sys; {before}; from halfguard.cli import main; main()"
    command = (sys.executable, "-c", code, *map(str, arguments))
    done = captured(*command, cwd=Path.cwd(), stdin=stdin)
    return CommandResult(done.returncode, done.stdout, done.stderr)
