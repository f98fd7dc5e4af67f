"""Start the program: run a plain command line of a fast command at once, and give all others to typer."""

from __future__ import annotations

import importlib
import os
import sys

from halfguard.cli.options import Command, read_plain
from halfguard.errors import HalfguardError

_FAST = ("lint",)  # commands that are declared with ``halfguard.cli.options``


def main() -> None:
    """Run the program; called by the ``halfguard`` script."""
    name, *words = sys.argv[1:] or [""]
    if name in _FAST:
        command: Command = getattr(importlib.import_module(f"halfguard.cli.{name}"), name)
        arguments = None if _must_be_expanded(words) else read_plain(command, words)
        if arguments is not None:
            sys.exit(_run(command, arguments))
    from halfguard.cli import app  # noqa: PLC0415

    app.main()


def _must_be_expanded(words: list[str]) -> bool:
    """Return whether words have patterns that no shell has expanded; typer does it on Windows."""
    return os.name == "nt" and any(mark in word for word in words for mark in "*?[~$%")


def _run(command: Command, arguments: dict[str, object]) -> int:
    """Run a command, and end as typer does if it fails, is interrupted, or if nobody reads its output."""
    try:
        code = command(**arguments)
        sys.stdout.flush()
    except HalfguardError as error:
        from halfguard.cli.app import show_error  # noqa: PLC0415

        show_error(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The interpreter would try to write the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
