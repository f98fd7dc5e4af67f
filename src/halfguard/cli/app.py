"""The ``halfguard`` program: finds the command's file, runs it, and turns errors into exit codes.

Exit code 0 is good, 1 means findings or a FAIL, 2 a mistake in the call. A user's mistake never ends
in a traceback: every ``HalfguardError`` is printed as what happened and what to do next.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
import typer.core
import typer.main

from halfguard import __version__
from halfguard.errors import HalfguardError

# One file a command; a file is imported when its command, or the list of commands, is asked for.
# Each file holds ``app``, a Typer application with one command, and imports heavy things inside it.
COMMANDS = (
    "explain",
    "doctor",
    "presets",
    "lint",
    "rule",
    "probe",
    "plan",
    "replay",
    "validate",
    "report",
)


class _LazyGroup(typer.core.TyperGroup):
    """A group whose commands live in ``halfguard.cli.<name>``."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"halfguard.cli.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"halfguard {__version__}")
        raise typer.Exit


@app.callback()
def halfguard(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Train in 16 bits, and prove that it is as good as 32."""


def main() -> None:
    """Run the program; called by the ``halfguard`` script."""
    try:
        app()
    except HalfguardError as error:
        typer.secho(f"halfguard: {error.message}", fg="red", err=True)
        if error.cure:
            typer.echo(error.cure, err=True)
        sys.exit(2)
