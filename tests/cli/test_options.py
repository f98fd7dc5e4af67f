"""Plain command lines are read without typer, and mean the same as with it."""

from __future__ import annotations

from pathlib import Path

import typer.main

from halfguard.cli.app import make_app
from halfguard.cli.lint import Format, lint
from halfguard.cli.options import Option, read_parameters, read_plain
from tests.support.cases import each

PLAIN = [
    ["train.py"],
    ["-", "--fix"],
    ["a.py", "src", "--fix", "--unsafe-fixes"],
    ["--select", "HG1,HG203", ".", "--ignore=HG101", "--preview"],
    [".", "--format", "sarif", "--no-cache"],
    [".", "--json", "--diff"],
    [".", "--select", "HG1", "--select", "HG2"],
    [],
]
FOR_TYPER = [
    ["--help"],
    ["-h"],
    [".", "--selct", "HG1"],
    [".", "--sel", "HG1"],
    [".", "--format", "xml"],
    [".", "--select"],
    [".", "--fix=yes"],
    ["--", "-"],
]


def _by_typer(words: list[str]) -> dict[str, object]:
    """Return the arguments that typer passes to the command."""
    passed: dict[str, object] = {}

    def spy(**arguments: object) -> int:
        passed.update(arguments)
        return 0

    spy.__annotations__ = lint.__annotations__
    spy.__wrapped__ = lint  # type: ignore[attr-defined]  # for its signature and its globals
    typer.main.get_command(make_app(spy)).main(words, standalone_mode=False)
    return passed


@each("words", PLAIN)
def test_a_plain_line_means_the_same_with_and_without_typer(words: list[str]) -> None:
    quick = read_plain(lint, words)
    assert quick is not None
    defaults = {p.name: p.default for p in read_parameters(lint)}
    by_typer = _by_typer(words)
    assert {name: value or None for name, value in (defaults | quick).items()} == {
        name: value or None for name, value in by_typer.items()
    }


@each("words", FOR_TYPER)
def test_everything_else_is_left_to_typer(words: list[str]) -> None:
    assert read_plain(lint, words) is None


def test_values_have_their_types() -> None:
    found = read_plain(lint, [".", "--format", "github"])
    assert found == {"paths": [Path()], "output": Format.GITHUB}


def test_every_parameter_is_declared() -> None:
    flags = [p.flag for p in read_parameters(lint) if isinstance(p.declared, Option)]
    assert len(flags) == len(set(flags)) == 9
