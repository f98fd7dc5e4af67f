"""``halfguard lint`` and ``halfguard rule`` as a user runs them: in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "from halfguard.cli import main; main()"
BAD = "import torch\n\n\ndef f(x, m):\n    return x.masked_fill(m, -1e9).softmax(-1)  # mask\n"


def run(
    *args: str | Path, stdin: str = "", code: str = RUN, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=cwd,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BAD)
    return path


def test_findings_are_exit_code_1(script: Path) -> None:
    done = run("lint", script)
    assert (done.returncode, done.stderr) == (1, "")
    assert "HG101" in done.stdout
    assert "^^^^" in done.stdout


def test_nothing_is_exit_code_0(tmp_path: Path) -> None:
    done = run("lint", tmp_path)
    assert (done.returncode, done.stdout) == (0, "Nothing found.\n")


@pytest.mark.slow
def test_diff_shows_and_fix_writes(script: Path) -> None:
    shown = run("lint", script, "--diff")
    assert shown.returncode == 1
    assert (
        "+    return x.masked_fill(m, torch.finfo(x.dtype).min).softmax(-1)  # mask\n"
        in shown.stdout
    )
    assert script.read_text() == BAD
    fixed = run("lint", script, "--fix")
    assert fixed.returncode == 0
    assert "Applied 1 fix." in fixed.stdout
    assert script.read_text() == BAD.replace("-1e9", "torch.finfo(x.dtype).min")
    assert run("lint", script, "--diff").returncode == 0


def test_stdin() -> None:
    done = run("lint", "-", "--json", stdin=BAD)
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)
    assert (row["code"], row["path"], row["line"], row["column"]) == ("HG101", "stdin.py", 5, 29)
    fixed = run("lint", "-", "--fix", stdin=BAD)
    assert (fixed.returncode, "finfo" in fixed.stdout) == (0, True)


@pytest.mark.parametrize(
    "args",
    [
        ("lint", "nowhere.py"),
        ("lint", ".", "--select", "HG9"),
        ("lint", "."),
        ("lint", ".", "--format", "xml"),
        ("lint",),
        ("rule", "HG999"),
    ],
)
def test_a_mistake_in_the_call_is_exit_code_2(args: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.halfguard.lint]\nwrong = 1\n")
    done = run(*args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_select_and_sarif(script: Path) -> None:
    assert run("lint", script, "--select", "HG2").returncode == 0
    assert run("lint", script, "--ignore", "hg101").returncode == 0
    body = json.loads(run("lint", script, "--format", "sarif").stdout)
    assert body["runs"][0]["results"][0]["ruleId"] == "HG101"


def test_a_rule_prints_its_page() -> None:
    done = run("rule", "hg101")
    assert done.returncode == 0
    assert done.stdout.startswith("# HG101: mask-constant\n")
    assert "## Why is this bad?" in done.stdout
    assert run("rule", "mask-constant").stdout == done.stdout
    assert "HG203" in run("rule").stdout
    assert json.loads(run("rule", "HG101", "--json").stdout)["fix"] == "safe"


def test_no_large_package_is_imported_to_find(script: Path) -> None:
    watched = "{'torch', 'numpy', 'libcst', 'yaml'} & set(sys.modules)"
    code = f"import atexit, sys; atexit.register(lambda: print({watched})); {RUN}"
    assert run("lint", script, code=code).stdout.splitlines()[-1] == "set()"
