"""Instruments that are commands: they get a program's path and print what they found."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.casebook.cases import ROOT
from benchmarks.casebook.results import Alarm, Ran

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}
Alarms = dict[Path, list[Alarm]]


def run_command(
    command: list[str], folder: Path, codes: set[int], limit: float, **variables: str
) -> Ran | str:
    """Run a command in a folder; return what it prints, or how it failed. ``codes`` are good exit codes."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | ENVIRONMENT | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it may have started others
        process.communicate()
        return Ran(ended="out of time", seconds=limit)
    if process.returncode in codes:
        return out
    seconds = round(time.monotonic() - began, 1)
    return Ran(ended="instrument failed", error=(err or out)[-400:], seconds=seconds)


def run_on_source(
    command: list[str], programs: list[Path], parse: Callable[[str], Alarms]
) -> list[Ran]:
    """Run a command on all programs at once: it only reads them, so none can disturb another."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = [Path(program.parent.name, program.name) for program in programs]
        for program, name in zip(programs, names, strict=True):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(program, folder / name)
        out = run_command([*command, *map(str, names)], folder, {0, 1}, limit=3000.0)
    if isinstance(out, Ran):
        return [out] * len(programs)
    found = parse(out)
    return [Ran(alarms=tuple(found.get(name, []))) for name in names]


def lint(programs: list[Path]) -> list[Ran]:
    command = [sys.executable, "-m", "halfguard", "lint", "--json"]
    return run_on_source(command, programs, _lint_findings)


def _lint_findings(out: str) -> Alarms:
    found: Alarms = {}
    for one in json.loads(out):
        alarm = Alarm(one["code"], one["message"], one["line"])
        found.setdefault(Path(one["path"]), []).append(alarm)
    return found


def torchfix(programs: list[Path]) -> list[Ran]:
    command = ["torchfix", "--select", "ALL", "-j", "1"]
    return run_on_source(command, programs, _torchfix_findings)


def _torchfix_findings(out: str) -> Alarms:
    found: Alarms = {}
    for path, line, code, text in re.findall(r"(?m)^(.*?\.py):(\d+):\d+: (TOR\d+) (.*)$", out):
        found.setdefault(Path(path), []).append(Alarm(code, text, int(line)))
    return found
