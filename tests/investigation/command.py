"""Run ``halfguard why`` on a script, as a user does: in a folder of its own, in processes of their own.

The processes are forks of one that has imported torch and the script's framework, which takes most of the
time otherwise. Some tests ask for real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from halfguard.investigation.one_pass import run_pass
from halfguard.investigation.passes import PassResult, read_result
from halfguard.records.script_answer import ScriptAnswer
from tests.repairs.patched_script import first_pass
from tests.support.docs import ROOT
from tests.support.forks import FORKED, forked_python, group_of

SCRIPTS = Path(__file__).parent / "scripts"


def why(
    *command: str, cwd: Path, timeout: float = 280, real: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command; what it prints is for a program, not for a terminal."""
    return subprocess.run(
        [python_for(*command, cwd=cwd, real=real), "-m", "halfguard", "why", *command],
        cwd=cwd,
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def python_for(*command: str, cwd: Path, real: bool = False) -> str:
    """Return the Python that runs the command: one that forks, or with ``real`` that of this process."""
    files = [cwd / word for word in command if word.endswith(".py") and (cwd / word).is_file()]
    group = group_of("\n".join(file.read_text("utf-8") for file in files))
    return sys.executable if real else forked_python(group)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def answer_of(*command: str, cwd: Path, real: bool = False) -> ScriptAnswer:
    """Run the command, and return its answer."""
    done = why("--json", *command, cwd=cwd, real=real)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return ScriptAnswer.from_json(done.stdout)


def ask(
    name: str, folder: Path, *arguments: str, options: tuple[str, ...] = (), real: bool = False
) -> ScriptAnswer:
    """Copy a script into a folder, run the command there, and return its answer."""
    shutil.copy2(SCRIPTS / name, folder / name)
    return answer_of(*options, name, *arguments, cwd=folder, real=real)


def ask_about(text: str, folder: Path) -> ScriptAnswer:
    """Write a script into a folder, run the command there, and return its answer."""
    (folder / "train.py").write_text(text, "utf-8")
    return answer_of("train.py", cwd=folder)


def run_one_pass(text: str, folder: Path, **facts: object) -> PassResult:
    """Run the first pass of a script, or one with other facts, in a process of its own."""
    (folder / "train.py").write_text(text, "utf-8")
    plan = first_pass(folder / "train.py").model_copy(update=facts)
    process = FORKED.Process(target=run_pass, args=(plan,))
    process.start()
    process.join()
    result = read_result(folder / "answer.json")
    assert result is not None
    return result


def culprit_line(name: str) -> int:
    """Return the line that the script marks as its culprit."""
    lines = (SCRIPTS / name).read_text("utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith("# culprit"))
