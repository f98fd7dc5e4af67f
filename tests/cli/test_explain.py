"""``halfguard explain`` as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RUN = "from halfguard.cli import main; main()"


def explain(*args: str, code: str = RUN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, "explain", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_table_and_its_meaning() -> None:
    done = explain("1e-8")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "1e-8"
    assert any(line.split() == ["FP16", "0", "100%", "underflow", "to", "0"] for line in lines)
    assert "As an eps: it is 0 in FP16" in done.stdout


def test_the_table_as_json() -> None:
    body = json.loads(explain("70000", "--json").stdout)
    assert (body["kind"], body["exact"]) == ("explanation", "70000")
    assert body["formats"][0] == {
        "name": "FP16",
        "dtype": "float16",
        "stored": "Infinity",
        "computed": None,
        "relative_error": "Infinity",
        "state": "overflow to inf",
    }
    assert body["sentences"]


@pytest.mark.parametrize(
    ("args", "expression"),
    [
        (["-1e9"], "-1e9"),
        (["-exp(3)"], "-exp(3)"),
        (["--", "-1e9"], "-1e9"),
        (["1", "-", "1e-4"], "1 - 1e-4"),
        (["-1", "+", "-2"], "-1 + -2"),
    ],
)
def test_expressions_need_no_escaping_from_options(args: list[str], expression: str) -> None:
    done = explain(*args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split(" = ")[0] == expression


@pytest.mark.parametrize("bad", ["1+x", "__import__('os')", "9**9**9", "(", "-x"])
def test_a_bad_expression_is_a_usage_error(bad: str) -> None:
    done = explain(bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("halfguard: ")
    assert "Traceback" not in done.stderr


def test_a_rule_of_lint_is_explained_by_another_command() -> None:
    done = explain("hg108")
    assert done.returncode == 2
    assert "halfguard rule HG108" in done.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(flag: str) -> None:
    done = explain(flag)
    assert done.returncode == 0
    assert "EXPR" in done.stdout


def test_torch_is_not_imported() -> None:
    watched = "{'torch', 'numpy'} & set(sys.modules)"
    code = f"import atexit, sys; atexit.register(lambda: print({watched})); {RUN}"
    assert explain("1e-8", code=code).stdout.splitlines()[-1] == "set()"


def test_the_numbers_need_the_standard_library_only() -> None:
    watched = "{'torch', 'numpy', 'pydantic', 'rich', 'typer'} & set(sys.modules)"
    code = f"import sys, halfguard.numerics.explain; print({watched})"
    assert explain(code=code).stdout == "set()\n"
