"""Which files belong to installed packages, and not to the user."""

from __future__ import annotations

import functools

PACKAGE_FOLDERS = ("site-packages", "dist-packages")


@functools.cache
def is_installed(file: str) -> bool:
    """Return whether a file lies in a folder of installed packages."""
    parts = file.replace("\\", "/").split("/")
    return any(folder in parts for folder in PACKAGE_FOLDERS)
