"""What counts as the user's own code is followed; installed packages are not."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from halfguard.step import reach as reach_module
from halfguard.step.reach import is_users


def test_packages_in_a_folder_that_a_pth_file_names_are_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "other" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_elsewhere.py").write_text("def function():\n    pass\n")
    monkeypatch.syspath_prepend(str(folder))
    reach_module._installed.cache_clear()
    is_users.cache_clear()
    try:
        importlib.import_module("installed_elsewhere")
        assert not is_users("installed_elsewhere")
        assert is_users(__name__)
    finally:
        reach_module._installed.cache_clear()
        is_users.cache_clear()
