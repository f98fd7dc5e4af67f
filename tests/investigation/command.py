"""Run ``halfguard why`` on a script, as a user does: in a folder of its own, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from halfguard.records.script_answer import ScriptAnswer
from tests.support.docs import ROOT

SCRIPTS = Path(__file__).parent / "scripts"


def why(
    *command: str, cwd: Path, timeout: float = 280, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command; what it prints is for a program, not for a terminal."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [sys.executable, "-m", "halfguard", "why", *command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ask(name: str, folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> ScriptAnswer:
    """Copy a script into a folder, run the command there, and return its answer."""
    shutil.copy2(SCRIPTS / name, folder / name)
    done = why(*options, "--json", name, *arguments, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return ScriptAnswer.from_json(done.stdout)


def culprit_line(name: str) -> int:
    """Return the line that the script marks as its culprit."""
    lines = (SCRIPTS / name).read_text("utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith("# culprit"))
