"""The program, for tests that run it in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from halfguard.cli import main
from tests.cli.told import Told


@pytest.fixture
def halfguard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    """The program as a shell runs it, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Told:
        monkeypatch.setattr(sys, "argv", ["halfguard", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Told(ended.value.code, *capsys.readouterr())

    return run
