"""The program itself: how it is started."""

import subprocess
import sys

from typer.testing import CliRunner

import halfguard
from halfguard.cli.app import COMMANDS, GROUPS, app
from tests.support.cases import each


def test_the_program_runs_as_a_module() -> None:
    """People whose scripts folder is not on the path write ``python -m halfguard``."""
    command = [sys.executable, "-m", "halfguard", "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == f"halfguard {halfguard.__version__}\n"


def test_a_misspelt_command_is_answered_with_the_one_that_may_be_meant() -> None:
    command = [sys.executable, "-m", "halfguard", "lnt", "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean 'lint'?" in done.stderr


def test_the_help_groups_commands_by_a_users_day() -> None:
    command = [sys.executable, "-m", "halfguard", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    titles = [shown.index(title) for title in GROUPS]
    assert titles == sorted(titles)
    assert shown.index("Something went wrong") < shown.index(" why ") < shown.index(" replay ")


@each("command", [*COMMANDS, ""])
def test_the_help_fits_80_columns_and_flags_have_no_type(command: str) -> None:
    called = [command, "--help"] if command else ["--help"]
    shown = CliRunner().invoke(app, called, env={"COLUMNS": "80"}).output
    assert "<bool>" not in shown
    assert max(map(len, shown.splitlines())) <= 80
