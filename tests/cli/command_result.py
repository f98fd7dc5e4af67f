"""The result of running the ``halfguard`` program in a test: in this process, or in a new one."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from halfguard.cli import main
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


def run_in(folder: Path, *arguments: object, columns: int = 100) -> CommandResult:
    """Run the program in this process, as a shell in ``folder`` does."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["halfguard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return CommandResult(ended.value.code, out.getvalue(), err.getvalue())


def in_a_process(*arguments: object, before: str = "pass", stdin: str = "") -> CommandResult:
    """Run the program in a new process, in this folder; it executes a statement first."""
    code = f"import atexit, sys; {before}; from halfguard.cli import main; main()"
    command = (sys.executable, "-c", code, *map(str, arguments))
    done = captured(*command, cwd=Path.cwd(), stdin=stdin)
    return CommandResult(done.returncode, done.stdout, done.stderr)
