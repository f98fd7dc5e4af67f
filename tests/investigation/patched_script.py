"""A script in a temporary folder, the lines of it, and what a patch makes of it."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

from halfguard.investigation.passes import Place
from halfguard.investigation.patching import apply_patch


def write(script: Path, text: str) -> None:
    """Write a script."""
    script.write_text(dedent(text).lstrip("\n"), "utf-8")


def at(script: Path, text: str) -> Place:
    """Return the first line of the script with a text."""
    lines = script.read_text("utf-8").splitlines()
    return str(script), next(n for n, line in enumerate(lines, 1) if text in line)


def patched(script: Path, patch: str) -> str:
    """Return the patched script."""
    assert apply_patch(patch, Path(os.curdir)), patch
    return script.read_text("utf-8")
