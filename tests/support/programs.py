"""Programs that tests start in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.docs import ROOT

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")


def run_python(*arguments: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run Python on one thread, with this package and its tests; return what it printed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
