"""Every folder of tests is looked into: pytest passes over some names without a word."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent for path in Path(__file__).parent.rglob("test_*.py")}
    ignored = [f for f in folders for p in patterns if any(fnmatch.fnmatch(x, p) for x in f.parts)]
    assert ignored == []
