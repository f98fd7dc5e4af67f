"""``halfguard why`` on a program: what it answers, and whether its patch makes the program train."""

from __future__ import annotations

import os
import re
import shutil
import sys
import traceback
from pathlib import Path

import yaml

from benchmarks.casebook.behaviour import Run, check_cured
from benchmarks.casebook.inside.running import Program
from benchmarks.casebook.results import Alarm
from halfguard.investigation import Target, investigate
from halfguard.records.autopsy import is_source_patch
from halfguard.records.script_answer import ScriptAnswer
from halfguard.repairs.applying import apply_patch


def why(program: Program) -> list[Alarm]:
    """Ask in a folder of the program's own. A patch of a broken program is applied and judged."""
    shutil.copy(program.path, ".")
    name = program.path.name
    answer = investigate(Target(name=name))
    facts = program.path.parent / "case.yaml"
    if name == "broken.py" and facts.exists():
        program.facts["cure works"] = _works(answer, Path(name), facts)
    return _alarms(answer, name)


def _works(answer: ScriptAnswer, script: Path, facts: Path) -> bool:
    """Return whether the patched program does what the casebook's cured one does."""
    patch = "" if answer.cure is None else answer.cure.patch
    if not is_source_patch(patch) or not apply_patch(patch, Path.cwd()):
        return False
    try:
        check_cured(yaml.safe_load(facts.read_text("utf-8")), _run(script))
    except AssertionError:
        traceback.print_exc()
        return False
    return True


def _run(script: Path) -> Run:
    """Run a program in a fork, which has imported its frameworks already."""
    out, err = Path("patched.out").resolve(), Path("patched.err").resolve()
    child = os.fork()
    if child == 0:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
        program = Program(script.resolve(), out)
        program.run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(program.error is not None)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return Run(code, out.read_text("utf-8", "replace"), err.read_text("utf-8", "replace"))


def _alarms(answer: ScriptAnswer, name: str) -> list[Alarm]:
    alarms = []
    if answer.outcome == "non-finite value":
        found = answer.culprit
        op = "a number" if found is None else found.op
        line = found.line if found is not None and Path(found.file).name == name else None
        module = None if found is None else found.module
        alarms.append(Alarm(answer.code or f"bad {op}", answer.event, line, module))
    if answer.outcome == "crashed":
        found_at = re.findall(rf'{re.escape(name)}", line (\d+)', answer.log)
        line = int(found_at[-1]) if found_at else None
        alarms.append(Alarm(answer.code or "crash", answer.error, line))
    said = answer.advice if answer.cure is None else answer.cure.sentence
    named = re.findall(rf"{re.escape(name)}:(\d+)", said)
    alarms += [Alarm(answer.code or "cure", said[:200], int(line)) for line in named]
    alarms += [
        Alarm(f"swallowed {one.fault} of {one.op}", one.use, one.line, one.module)
        for one in answer.swallowed
        if one.use != "none"
    ]
    return alarms
