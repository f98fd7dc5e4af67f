"""Docstrings: public methods have one, and few begin with a question word."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import halfguard
from tests.support.cases import each

SOURCE = Path(halfguard.__path__[0])
QUESTION_WORDS = {"What", "Whether", "Which", "Who", "Whose", "How"}


def docstrings() -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text is not None:
                yield f"{path.relative_to(SOURCE)}:{getattr(node, 'name', 'module')}", text


def test_few_docstrings_begin_with_a_question_word() -> None:
    found = list(docstrings())
    questions = [place for place, text in found if text.split()[0].rstrip(",") in QUESTION_WORDS]
    assert len(questions) < 0.03 * len(found), f"{len(questions)} of {len(found)}:\n" + "\n".join(
        questions
    )


@each("name", halfguard.__all__)
def test_public_names_are_documented(name: str) -> None:
    value = getattr(halfguard, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    assert value.__doc__, name
    if inspect.isclass(value):
        own = {n: v for n, v in vars(value).items() if not n.startswith("_")}
        functions = {
            n: v for n, v in own.items() if inspect.isfunction(v) or isinstance(v, property)
        }
        missing = [n for n, v in functions.items() if not inspect.getdoc(getattr(value, n))]
        assert not missing, f"{name}: {missing}"
