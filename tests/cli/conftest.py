"""A fixture that runs the program in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from halfguard.cli import main
from tests.cli.command_result import CommandResult, Run


@pytest.fixture
def halfguard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Return a function that runs the program in the folder of the test, as a shell does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["halfguard", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return CommandResult(ended.value.code, *capsys.readouterr())

    return run
