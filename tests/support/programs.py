"""Programs that tests start in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.docs import ROOT
from tests.support.forks import forked_path, forked_python, group_of

TWO_RANKS = ("--standalone", "--nproc-per-node=2", "-m")
RANKS = int(os.environ.get("RANKS", "2"))  # scripts/soak sharded_tests: four


def run_python(*arguments: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run Python on one thread, with this package and its tests; return what it printed.

    A script, a text and ``-m halfguard`` run in a fork; other modules do not.
    """
    return _run(_python_for(*arguments, cwd=cwd), *arguments, cwd=cwd, **variables)


def run_ranks(group: str, module: str, *arguments: str, **variables: str) -> str:
    """Let torchrun start a module of the tests on ranks, all of them forks; return what was printed."""
    torchrun = str(forked_path(group) / "torchrun")
    ranks = ("--standalone", f"--nproc-per-node={RANKS}", "-m")
    return _run(torchrun, *ranks, module, *arguments, cwd=ROOT, **variables)


def captured(
    *command: str | Path, cwd: Path = ROOT, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, with these environment variables besides; return its exit code and what it printed."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | dict(env or {}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )


def _run(*command: str, cwd: Path, **variables: str) -> str:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables
    done = captured(*command, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _python_for(kind: str, program: str = "", *_: str, cwd: Path) -> str:
    if kind == "-m":
        return forked_python() if program == "halfguard" else sys.executable
    text = program if kind == "-c" else (cwd / kind).read_text("utf-8")
    return forked_python(group_of(text))
