"""Count processor seconds per package of tests, and compare them with ``tests/budget.toml``.

Wall time says little on a shared machine; processor time grows only if tests do more. Processes that a test
started count once they have ended and been waited for. Machines differ in speed, so budgets are seconds of a
reference machine: importing torch in a new process took `REFERENCE_IMPORT` seconds there; budgets grow with
what it takes here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import forked_seconds

BUDGETS = Path(__file__).parents[1] / "budget.toml"
COLLECTION = "collection"
REFERENCE_IMPORT = 3.0  # seconds of processor time for `import torch`


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended, forks included."""
    return sum(os.times()[:4]) + forked_seconds()


def package_of(path: Path) -> str:
    """Return the folder below ``tests`` that a test is in, or its module if it is in none."""
    return path.parts[path.parts.index("tests") + 1]


def slowdown() -> float:
    """Return how many times slower than the reference machine this one is, at least 1."""
    before = processor_seconds()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (processor_seconds() - before) / REFERENCE_IMPORT)


def over_budget(
    spent: Mapping[str, float], budgets: Mapping[str, float], slower: float
) -> list[str]:
    """Return a sentence for each package that took more than its budget, or has none."""
    return [
        f"{package}: {seconds:.0f} s of processor time, budget {limit:.0f} s"
        for package, seconds in sorted(spent.items())
        if seconds > (limit := budgets.get(package, budgets["other"]) * slower)
    ]


class ProcessorTime:
    """Add up processor seconds in each process of pytest, and report them at the end."""

    def __init__(self, config: Any) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._config = config
        self._checked = config.getoption("--check-budget")
        self._over: list[str] = []

    def pytest_collection_finish(self) -> None:
        self.spent[COLLECTION] += processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        before = processor_seconds()
        try:
            return (yield)
        finally:
            self.spent[package_of(item.path)] += processor_seconds() - before

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker of pytest-xdist has counted."""
        for package, seconds in (
            getattr(node, "workeroutput", {}).get("processor_seconds", {}).items()
        ):
            self.spent[package] += seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        is_worker = hasattr(self._config, "workeroutput")
        if is_worker:  # before the worker sends its output
            self._config.workeroutput["processor_seconds"] = dict(self.spent)
        result = yield
        if self._checked and not is_worker:
            budgets = tomllib.loads(BUDGETS.read_text())["seconds"]
            self._over = over_budget(self.spent, budgets, slowdown())
            if self._over and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._checked:
            return
        terminalreporter.section("processor seconds per package")
        for package, seconds in sorted(self.spent.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {package}")
        terminalreporter.write_line(f"{sum(self.spent.values()):8.1f}  in all")
        for sentence in self._over:
            terminalreporter.write_line(f"over budget (tests/budget.toml): {sentence}", red=True)
