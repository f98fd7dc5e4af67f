"""Run ``halfguard why`` on the casebook's healthy programs: none may be called bad.

``scripts/bench why_truth --healthy [NAME ...] [--held-out]``. The programs look dangerous, and are not. Those
that ``benchmarks.casebook.split`` holds out run only with ``--held-out``. If a scaler has skipped
steps, the answer must say that the loss scale was calibrating.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.casebook.split import held_out
from benchmarks.why_truth.truth import CASEBOOK, ask_in_fork
from halfguard.investigation import Target
from halfguard.records.script_answer import ScriptAnswer
from halfguard.report.markdown import to_markdown
from halfguard.report.script_answer import script_answer_page

CALIBRATES = "Skipped steps are normal only at the start, while the loss scale calibrates."


def programs(names: list[str], *, is_held_out: bool) -> list[Path]:
    """Return the folders of healthy programs whose names begin with one of ``names``."""
    found = [path.parent for path in sorted((CASEBOOK / "healthy").glob("*/program.py"))]
    return [
        folder
        for folder in found
        if held_out(folder.name) is is_held_out and folder.name.startswith(tuple(names) or "")
    ]


def problem(answer: ScriptAnswer) -> str:
    """Return what is wrong with the answer for a healthy program, or an empty string."""
    if answer.outcome != "nothing bad":
        return f"{answer.outcome}: {answer.event or answer.error}"
    skipped = answer.loss_scale and not answer.loss_scale.endswith("; 0 steps skipped")
    if skipped and CALIBRATES not in to_markdown(script_answer_page(answer)):
        return f"skipped steps are not explained: {answer.loss_scale}"
    return ""


def main(names: list[str], *, is_held_out: bool) -> None:
    """Ask for each program, and print the answers that are wrong, and their number."""
    folders = programs(names, is_held_out=is_held_out)
    wrong = 0
    for case in folders:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve() / case.name
            shutil.copytree(case, folder)
            answer = ask_in_fork(Target(name="program.py"), folder)
        found = problem(answer)
        wrong += bool(found)
        scale = f"; {answer.loss_scale}" if answer.loss_scale else ""
        print(f"{case.name}: {found or f'nothing bad{scale}'}", flush=True)
    print(f"{len(folders)} healthy programs, {wrong} wrong answers")
