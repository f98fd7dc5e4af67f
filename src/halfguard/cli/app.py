"""The ``halfguard`` program: import the file of a command, run it, and turn errors into exit codes.

Exit code 0 means success, 1 findings or a FAIL, 2 a usage error. No user error ends in a traceback:
a ``HalfguardError`` is printed as what happened and what to do next.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import typer
import typer.core
import typer.main

from halfguard import __version__
from halfguard.errors import HalfguardError

# One file per command, imported when the command or the list of commands is shown. Each file has a function
# with the command's name, or an ``app`` of its own, and imports large packages inside its functions. The help
# shows them in groups, in the order in which users need them.
GROUPS = {
    "Something went wrong": ("why", "replay", "mismatch", "report"),
    "Before training": ("doctor", "lint", "probe", "plan"),
    "Is it good enough": ("validate", "compare"),
    "Set up and look up": ("presets", "rule"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


class _LazyGroup(typer.core.TyperGroup):
    """A group that imports a command from ``halfguard.cli.<name>`` when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            # typer looks here for a command that may be meant.
            self.commands = dict.fromkeys(COMMANDS, typer.core.TyperCommand(""))
            return None
        module = importlib.import_module(f"halfguard.cli.{cmd_name}")
        command = typer.main.get_command(getattr(module, "app", None) or _app_of(module, cmd_name))
        command.name = cmd_name
        for one in (command, *getattr(command, "commands", {}).values()):
            one.rich_markup_mode = None  # its panels wrap twice, and show flags as <bool>
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [(name, one.get_short_help_str(200)) for name, one in commands.items()]
            with formatter.section(title):
                formatter.write_dl(rows)


def _app_of(module: ModuleType, name: str) -> typer.Typer:
    made = typer.Typer(add_completion=False)
    made.command()(getattr(module, name))
    return made


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
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
    """Train in 16-bit precision, and prove that the result is as good as in FP32."""


def main() -> None:
    """Run the program with the arguments of this process."""
    try:
        app()
    except HalfguardError as error:
        typer.secho(f"halfguard: {error.message}", fg="red", err=True)
        if error.cure:
            typer.echo(error.cure, err=True)
        sys.exit(2)
