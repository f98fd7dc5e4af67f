"""Files of installed packages, and files of the user."""

from __future__ import annotations

import pytest
import torch

from halfguard.step.installed import is_installed


@pytest.mark.parametrize(
    ("file", "installed"),
    [
        (torch.__file__, True),
        ("/usr/lib/python3/dist-packages/numpy/core.py", True),
        (r"C:\env\Lib\site-packages\peft\lora.py", True),
        ("/home/me/my-site-packages/train.py", False),
        ("train.py", False),
        ("<string>", False),
    ],
)
def test_installed_files_are_known_by_their_folder(file: str, installed: bool) -> None:
    assert is_installed(file) == installed
