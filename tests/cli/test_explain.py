"""``halfguard explain`` from the command line."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.cli.command_result import Run


@pytest.fixture
def explain(halfguard: Run, seed: object) -> Run:
    """Run the program in this process; ``seed`` puts back the generator that rich draws from."""
    return partial(halfguard, "explain")


def test_a_table_and_its_meaning(explain: Run) -> None:
    done = explain("1e-8")
    assert (done.exit_code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "1e-8"
    assert any(line.split() == ["FP16", "0", "100%", "underflow", "to", "0"] for line in lines)
    assert "As an eps: it is 0 in FP16" in done.out


def test_the_table_as_json(explain: Run) -> None:
    body = json.loads(explain("70000", "--json").out)
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
def test_expressions_need_no_escaping_from_options(
    explain: Run, args: list[str], expression: str
) -> None:
    done = explain(*args)
    assert done.exit_code == 0, done.err
    assert done.out.splitlines()[0].split(" = ")[0] == expression


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(explain: Run, flag: str) -> None:
    done = explain(flag)
    assert done.exit_code == 0
    assert "EXPR" in done.out
