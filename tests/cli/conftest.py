"""A fixture that runs the program in this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.cli.command_result import Run, run_in


@pytest.fixture
def halfguard(tmp_path: Path) -> Run:
    """Return a function that runs the program in the folder of the test."""
    return partial(run_in, tmp_path)
