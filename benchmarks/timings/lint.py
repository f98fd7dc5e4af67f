"""Measure lint on large source trees, without torch, optionally beside another linter.

python -m benchmarks.timings.lint PATH... [--peer COMMAND]

``--peer`` is another linter's command, which gets the same paths, for instance ``--peer torchfix`` or
``--peer "ruff check --isolated --no-cache"``.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from halfguard.lint.files import find_files
from halfguard.lint.settings import Settings

# Makes every import of torch fail.
_WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from halfguard.cli import main; main()"


def _seconds(command: Sequence[str], limit: float) -> tuple[float, str]:
    """Return the wall time of a command, and a note with its processor time."""
    start, busy = time.perf_counter(), _processor_seconds()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return limit, f"stopped after {limit:.0f} s"
    lines = (done.stdout or done.stderr).strip().splitlines()
    used = _processor_seconds() - busy
    return (
        time.perf_counter() - start,
        f"{used:.2f} s of processor time, {len(lines)} lines printed",
    )


def _processor_seconds() -> float:
    """Return the processor time of all commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    default = [Path(__file__).parents[1] / "src"]
    parser.add_argument("paths", nargs="*", type=Path, default=default)
    parser.add_argument("--peer")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each contestant")
    return parser


def main() -> None:
    arguments = make_parser().parse_args()
    files = [p for p in find_files(arguments.paths, Settings()) if p.suffix == ".py"]
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    print(f"\n{len(files):,} Python files, {lines:,} lines")
    paths = [str(path) for path in arguments.paths]
    ours = [
        sys.executable,
        "-c",
        _WITHOUT_TORCH,
        "lint",
        *paths,
        "--format",
        "github",
    ]
    contestants = {"halfguard lint, no torch": ours}
    if arguments.peer:
        contestants[arguments.peer] = [*shlex.split(arguments.peer), *paths]
    for name, command in contestants.items():
        seconds, note = _seconds(command, arguments.limit)
        print(f"{name:<34}{seconds:>8.1f} s   {note}")


if __name__ == "__main__":
    main()
