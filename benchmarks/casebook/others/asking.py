"""Lint and ``halfguard why`` on somebody else's script, as a user runs them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from benchmarks.casebook.cases import ROOT
from benchmarks.casebook.commands import run_command
from benchmarks.casebook.results import Ran
from halfguard.lint.engine import lint_bytes
from halfguard.lint.settings import Settings
from halfguard.records.script_answer import ScriptAnswer

LIMIT = 600.0  # seconds for one program under why, on a busy machine


def lint_rules(name: str, data: bytes, lines: Collection[int] | None = None) -> tuple[str, ...]:
    """Return the rules that lint reports, at one of the lines if they are given."""
    settings = Settings()
    found = lint_bytes(data, name, settings, settings.rules())
    return tuple(dict.fromkeys(one.code for one in found if lines is None or one.line in lines))


def ask_why(script: Path, paths: list[Path]) -> ScriptAnswer:
    """Ask ``halfguard why`` in a copy of the script's folder; ``paths`` are added to Python's."""
    places = os.pathsep.join(map(str, [ROOT / "src", *paths]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, script.parent.name)
        shutil.copytree(script.parent, folder)
        command = [sys.executable, "-m", "halfguard", "why", "--json", script.name]
        out = run_command(command, folder, {0, 1}, LIMIT, PYTHONPATH=places, MPLBACKEND="Agg")
    if isinstance(out, Ran):
        error = out.error or out.ended
        return ScriptAnswer(script=script.name, outcome="crashed", error=error)
    return ScriptAnswer.from_json(out)
