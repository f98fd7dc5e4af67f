"""The drawn tree is the real one, and every error says what to do next."""

from __future__ import annotations

import inspect

from halfguard import errors
from halfguard.errors import HalfguardError, MissingExtraError


def test_the_docstring_draws_every_class_under_its_parent() -> None:
    drawing = errors.__doc__ or ""
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if not issubclass(cls, HalfguardError):
            continue
        (line,) = [
            row for row in drawing.splitlines() if row.split("──")[-1].strip().startswith(name)
        ]
        builtin = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
        if cls is not HalfguardError:
            assert all(f"({base})" in line for base in builtin)
            parent = next(base for base in cls.__bases__ if issubclass(base, HalfguardError))
            assert _column(drawing, parent.__name__) < _column(drawing, name)


def _column(drawing: str, name: str) -> int:
    return next(
        row.index(name)
        for row in drawing.splitlines()
        if row.split("──")[-1].strip().startswith(name)
    )


def test_a_missing_extra_is_answered_with_the_pip_command() -> None:
    error = MissingExtraError("halfguard.ops", "torch")
    assert "pip install 'halfguard[torch]'" in str(error)
    assert isinstance(error, ImportError)
