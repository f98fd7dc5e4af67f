"""CI's budget of processor time per package, and the samples that change with the commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import _in_sample
from tests.support import forks
from tests.support.processor_time import over_budget, package_of

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.support import processor_time

processor_time.slowdown = lambda: 1.0
processor_time.BUDGETS = __import__("pathlib").Path(__file__).with_name("budget.toml")

def pytest_addoption(parser):
    parser.addoption("--check-budget", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(processor_time.ProcessorTime(config))
"""
BUSY = """
import subprocess, sys, time

BURN = "import time\\nwhile time.process_time() < 0.5: pass"

def test_here():
    begin = time.process_time()
    while time.process_time() - begin < 0.5:
        pass

def test_in_a_child():
    subprocess.run([sys.executable, "-c", BURN], check=True)
"""


def run_with_budget(folder: Path, seconds: float, *options: str) -> Any:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "tests/busy").mkdir(parents=True, exist_ok=True)
    (folder / "tests/busy/test_busy.py").write_text(BUSY)
    (folder / "budget.toml").write_text(f"[seconds]\nother = 60\nbusy = {seconds}\n")
    command = [sys.executable, "-m", "pytest", "-q", "--check-budget", f"--rootdir={folder}"]
    command += ["-c", "/dev/null", "-o", f"pythonpath={ROOT}", "-p", "no:cacheprovider", *options]
    # Of its own: what this process has spent in forks would count as spent there.
    environment = {k: v for k, v in os.environ.items() if k != forks._SHARED}
    return subprocess.run(
        [*command, "."],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "workers"])
def test_a_package_over_its_budget_fails_the_run(tmp_path: Path, workers: tuple[str, ...]) -> None:
    within = run_with_budget(tmp_path, 30, *workers)
    assert within.returncode == 0, within.stdout + within.stderr
    (spent,) = [line.split() for line in within.stdout.splitlines() if line.endswith("  busy")]
    assert 1.0 <= float(spent[0]) < 10  # half a second each, here and in a child

    beyond = run_with_budget(tmp_path, 0.5, *workers)
    assert beyond.returncode == 1
    assert "over budget (tests/budget.toml): busy:" in beyond.stdout
    assert "2 passed" in beyond.stdout


def test_a_slower_machine_has_larger_budgets() -> None:
    spent = {"guard": 100.0, "new": 70.0}
    assert over_budget(spent, {"guard": 90, "other": 60}, slower=1.0) == [
        "guard: 100 s of processor time, budget 90 s",
        "new: 70 s of processor time, budget 60 s",
    ]
    assert over_budget(spent, {"guard": 90, "other": 60}, slower=1.2) == []


def test_a_test_belongs_to_the_folder_below_tests() -> None:
    assert package_of(Path("/x/tests/guard/stepping/test_gate.py")) == "guard"
    assert package_of(Path("/x/tests/test_docs.py")) == "test_docs.py"


def test_three_samples_cover_everything_once() -> None:
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/test_a.py::test_b[{n}]") for n in range(300)]
    parts = {}
    for seed in map(str, range(50)):  # commits
        part = tuple(item.nodeid for item in items if _in_sample(item, seed))
        parts[part] = seed
    assert len(parts) == 3
    assert sorted(name for part in parts for name in part) == sorted(i.nodeid for i in items)
    assert all(60 < len(part) < 140 for part in parts)
