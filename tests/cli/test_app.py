"""The program itself: how it is started."""

import subprocess
import sys

import halfguard


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
