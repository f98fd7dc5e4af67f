"""Run tests on other versions of torch and of frameworks, for the tables of docs/reference/versions.md.

scripts/bench versions 2.9.1 2.15.0        the fast tests: a virtual environment for each torch
scripts/bench versions 2.9.1 --record      and write benchmarks/results/versions/
scripts/bench versions --core 2.9.1        those of the packages that reach into torch, without others: for CI
scripts/bench versions --frameworks trl    the adapters' tests: the oldest and the newest version of each
scripts/bench versions --frameworks trl --record      and write benchmarks/results/frameworks/
scripts/bench versions --run --record      run in the present environment, with --frameworks as well

`scripts/tables versions` writes the tables; with `--check` it also fails if pyproject.toml
permits an older version of a framework than was run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.tables.sections import ROOT, update_sections

RECORDS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "versions.md"
EXTRAS = "dev"
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
FAST = ["-n", "3", "--dist", "worksteal", "-m", "not slow", "--hypothesis-profile=ci"]
CORE = [
    *(f"tests/{package}" for package in ("guard", "step", "precision", "dist", "tracing")),
    "tests/test_torch_internals.py",
    "-k",
    "not standin and not every_private_name",  # compiled for one torch; of all frameworks
    "--sample-families",
]
COUNTS = ("passed", "failed", "skipped", "date")
COLUMNS = {
    "versions": ("torch", "python", *COUNTS),
    "frameworks": ("framework", "version", "with", "torch", *COUNTS),
}
TORCH = "2.13.0"  # that frameworks are run with
TOOLS = ["pytest>=8.4", "pytest-timeout", "pytest-xdist", "hypothesis", "hydra-core", "tensorboard"]
# The tests of each framework, and what is installed with its oldest version.
FRAMEWORKS = {
    "lightning": (["lightning*", "fabric"], []),
    "transformers": (["transformers*"], ["accelerate"]),
    "accelerate": (["accelerat*"], []),
    "trl": (
        ["trl"],
        ["peft", "accelerate", "transformers==4.56.1"],
    ),  # trl 0.24 permits no older one
}


def try_version(torch: str, *, record: bool) -> int:
    """Run the fast tests in a new environment with one version of torch; return their exit code."""
    return in_new_environment(torch, [f".[{EXTRAS}]"], ["--run"], record=record)


def try_core(torch: str) -> int:
    """Run the fast tests of what reaches into torch, in a new environment without other packages."""
    return in_new_environment(torch, [".[torch]", *TOOLS], ["--run", "--core"], record=False)


def try_framework(name: str, *, record: bool) -> int:
    """Run the tests of a framework's adapter with its oldest and its newest version."""
    _, beside = FRAMEWORKS[name]
    oldest = [p if "==" in p else f"{p}=={floor(p)}" for p in (name, *beside)]
    newest = [name, *(p.partition("==")[0] for p in beside)]
    run = ["--run", "--frameworks", name]
    packages = ([".[torch]", *TOOLS, *chosen] for chosen in (oldest, newest))
    return max(in_new_environment(TORCH, given, run, record=record) for given in packages)


def in_new_environment(torch: str, packages: list[str], run: list[str], *, record: bool) -> int:
    """Install torch and packages into a new environment, and run this script there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", f"torch=={torch}"]
        subprocess.run(install, check=True, cwd=ROOT)
        subprocess.run([*install, "-e", *packages], check=True, cwd=ROOT)
        command = [python, "-m", "benchmarks.versions", *run, *(["--record"] if record else [])]
        environment = os.environ | {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


def floor(package: str) -> str:
    """Return the oldest version of a package that pyproject.toml permits."""
    found = re.search(rf'"{package}>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    if found is None:
        raise SystemExit(f"pyproject.toml has no oldest version of {package}")
    return found[1]


def run_here(*, record: bool, core: bool = False) -> int:
    """Run the fast tests in this environment; return 1 if one failed."""
    found = tested([*FAST, *CORE] if core else FAST)
    short = ".".join(found["torch"].split("+")[0].split(".")[:2])
    python = ".".join(found["python"].split(".")[:2])
    return report_result(found, f"versions/torch-{short}-python-{python}.json" if record else None)


def run_framework_here(name: str, *, record: bool) -> int:
    """Run the tests of a framework's adapter in this environment; return 1 if one failed."""
    patterns, beside = FRAMEWORKS[name]
    files = [f for p in patterns for f in sorted(ROOT.glob(f"tests/integrations/test_{p}.py"))]
    packages = [package.partition("==")[0] for package in beside]
    with_these = ", ".join(f"{package} {version(package)}" for package in packages)
    found = {"framework": name, "version": version(name), "with": with_these}
    found |= tested([str(file.relative_to(ROOT)) for file in files])
    return report_result(found, f"frameworks/{name}-{found['version']}.json" if record else None)


def tested(arguments: list[str]) -> dict[str, Any]:
    """Run pytest; return the environment and how many tests passed, failed and were skipped."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "tests.xml")
        command = [sys.executable, *PYTEST, *arguments, f"--junitxml={report}"]
        subprocess.run(command, check=False, cwd=ROOT)
        counts = count_results(report)
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **counts,
        "date": date.today().isoformat(),
    }


def report_result(found: dict[str, Any], record: str | None) -> int:
    """Print what was found, and keep it if it has a name; return 1 if a test failed or none was run."""
    print(json.dumps(found))
    if record is not None:
        (RECORDS / record).parent.mkdir(parents=True, exist_ok=True)
        (RECORDS / record).write_text(json.dumps(found, indent=2) + "\n")
    return int(found["failed"] > 0 or found["passed"] == 0)


def count_results(report: Path) -> dict[str, int]:
    """Return how many tests passed, failed and were skipped, from pytest's own report."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    numbers = [
        {k: int(s.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")} for s in suites
    ]
    total = {key: sum(suite[key] for suite in numbers) for key in numbers[0]}
    failed = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - failed - total["skipped"],
        "failed": failed,
        "skipped": total["skipped"],
    }


def records(kind: str) -> list[dict[str, Any]]:
    """Return the records, oldest version first."""
    found = [json.loads(path.read_text()) for path in sorted((RECORDS / kind).glob("*.json"))]
    order = {name: index for index, name in enumerate(FRAMEWORKS)}
    return sorted(
        found,
        key=lambda r: (
            order.get(r.get("framework", ""), 0),
            numbers(r.get("version", r["torch"])),
            r["python"],
        ),
    )


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def table(kind: str) -> str:
    heads = ["Python" if name == "python" else name for name in COLUMNS[kind]]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(str(r[key]) for key in COLUMNS[kind])} |" for r in records(kind)]
    return "\n".join(lines)


def not_run() -> list[str]:
    """Return the frameworks whose oldest permitted version has no record."""
    run = {(r["framework"], *numbers(r["version"])[:2]) for r in records("frameworks")}
    return [name for name in FRAMEWORKS if (name, *numbers(floor(name))[:2]) not in run]


def update(*, check: bool) -> list[str]:
    """Write the tables, or return what is wrong with them or was not run."""
    problems = update_sections({(PAGE, kind): table(kind) for kind in COLUMNS}, check=check)
    return problems + [
        f"the oldest permitted version was not run: scripts/bench versions --frameworks {name} --record"
        for name in not_run()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="TORCH")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=[], metavar="NAME")
    for flag in ("--core", "--run", "--record"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    one = run_framework_here if options.run else try_framework
    codes = [
        try_core(torch) if options.core else try_version(torch, record=options.record)
        for torch in options.versions
    ]
    codes += [one(name, record=options.record) for name in options.frameworks]
    if options.run and not options.frameworks:
        codes.append(run_here(record=options.record and not options.core, core=options.core))
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
