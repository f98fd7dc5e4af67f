"""scripts/test leaves out what is said there; scripts/bench passes what benchmarks accept."""

from __future__ import annotations

import importlib
import os
import shlex
from pathlib import Path

import lightning.pytorch  # noqa: F401 - its import sets variables of the environment, which a test must not
import pytest
from benchmarks import versions

from tests.support.docs import ROOT
from tests.support.programs import captured

BENCHMARKS = sorted(p.stem for p in ROOT.glob("benchmarks/timings/[a-z]*.py"))
FAST = ["-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", "not slow", "--sample-families"]
ALL = ["-m", "pytest", "-n", "3", "--dist", "worksteal", "--sample-cells", "--check-budget"]


def started(folder: Path, *command: str) -> list[list[str]]:
    """Return the arguments of each ``python`` that a script starts."""
    python = folder / "python"
    python.write_text('#!/usr/bin/env bash\nprintf "%q " "$@"; echo\n')
    python.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = captured(ROOT / command[0], *command[1:], env={"PATH": path})
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ([], FAST),
        (["--all"], ALL),
        (["--all", "-k", "two words"], [*ALL, "-k", "two words"]),
        (["tests/ops", "-x"], ["-m", "pytest", "tests/ops", "-x"]),
    ],
)
def test_nothing_else_is_left_out(
    tmp_path: Path, given: list[str], passed: list[str], pytestconfig: pytest.Config
) -> None:
    assert started(tmp_path, "scripts/test", *given) == [passed]
    options = {option.split("=")[0] for option in pytestconfig.getini("addopts")}
    assert options == {"--strict-markers", "--strict-config", "--import-mode", "-ra"}
    assert pytestconfig.getini("testpaths") == ["tests"]


def test_ci_runs_all_tests() -> None:
    assert "\nscripts/test --all --hypothesis-profile=ci\n" in (ROOT / ".ci/run").read_text()


def test_all_benchmarks_are_run_unless_one_is_named(tmp_path: Path) -> None:
    calls = [["-m", f"benchmarks.timings.{name}"] for name in BENCHMARKS]
    assert started(tmp_path, "scripts/bench") == calls
    assert started(tmp_path, "scripts/bench", "guard") == [["-m", "benchmarks.timings.guard"]]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_accepts_the_arguments_that_the_script_passes(
    name: str, tmp_path: Path
) -> None:
    ((_, module, *arguments),) = started(tmp_path, "scripts/bench", name)
    importlib.import_module(module).make_parser().parse_args(arguments)


def test_a_framework_whose_oldest_permitted_version_was_not_run_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert versions.not_run() == []
    older = {name: "0.1" if name == "trl" else versions.floor(name) for name in versions.FRAMEWORKS}
    monkeypatch.setattr(versions, "floor", older.get)
    assert versions.not_run() == ["trl"]
    assert "--frameworks trl --record" in versions.update(check=True)[0]
    assert "| trl | 0.24.0 |" in versions.table("frameworks")
