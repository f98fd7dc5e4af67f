"""A script in a temporary folder, the lines of it, its first pass, and what a patch makes of it."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

from halfguard.investigation.passes import PassPlan, Place, Target
from halfguard.repairs.applying import apply_patch


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


def first_pass(script: Path) -> PassPlan:
    """Return the plan of a first pass, which answers beside the script."""
    folder = script.parent
    return PassPlan(
        kind="sense",
        target=Target(name=str(script)),
        folder=str(folder),
        base=str(folder),
        answer=str(folder / "answer.json"),
        losses=str(folder / "losses.bin"),
        originals=(str(folder),),
    )
