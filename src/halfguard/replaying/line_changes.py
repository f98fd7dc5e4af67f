"""Changes of the user's own lines, made by function modes while the bad step runs.

They are those of ``replay``: stable operations on the culprit's line, the stable form of a composition of
operations, and statements in FP32, whose own casts are left out: ``x.half()`` there means ``x.float()``. Each
can tell what it did, and how to write it in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfguard.precision.modes import HALF_DTYPES
from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line
from halfguard.replaying.composition_rewrite import CompositionRewrite, Found
from halfguard.replaying.fp32_lines import (
    Statement,
    StatementsInFP32,
    patch_statements,
    statements_at,
    statements_before,
    statements_of_function,
)
from halfguard.replaying.function_modes import Place
from halfguard.replaying.substitution import StableSubstitution

_CASTS = (Tensor.half, Tensor.bfloat16)
_NAMES = ("half", "bfloat16")
_DTYPES = ("torch.float16", "torch.half", "torch.bfloat16")


class UncastStatements(StatementsInFP32):
    """Runs statements in FP32, without the casts that they make; ``uncast`` has those that make one."""

    def __init__(self, statements: list[Statement]) -> None:
        super().__init__(statements)
        self.uncast: set[ast.stmt] = set()
        self._certain = {one for file, one in statements if any(_casts(file, one))}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        lowers = func in _CASTS or (func is Tensor.to and _names_half(args, kwargs))
        found = self._statement() if lowers else None
        if found is None or found[1] not in self._certain:
            return super().call(func, args, kwargs)
        self.half.setdefault(found[1], set())
        self.uncast.add(found[1])
        return args[0].float()


def _names_half(args: Any, kwargs: Any) -> bool:
    given = (*args[1:], *kwargs.values())
    return any(isinstance(value, torch.dtype) and value in HALF_DTYPES for value in given)


def patch_uncast(mode: UncastStatements, statements: list[Statement]) -> str:
    """Return a patch of statements, with their casts changed to float32; empty if it is not certain."""
    for file, statement in statements:
        for node in _casts(file, statement) if statement in mode.uncast else ():
            if node.attr in _NAMES and _is_called(node, statement):
                file.replace_attribute(node, "float")
            else:
                file.replace(node, "torch.float32")
    return patch_statements(mode, statements)


def _casts(file: SourceFile, statement: ast.stmt) -> Iterator[ast.Attribute]:
    """Yield what names a half dtype in a statement: the method, or a dtype that is written out."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute):
            method = node.attr in _NAMES and _is_called(node, statement)
            if method or file.source(node) in _DTYPES:
                yield node


def _is_called(node: ast.Attribute, statement: ast.stmt) -> bool:
    return any(
        isinstance(call, ast.Call) and call.func is node and not call.args and not call.keywords
        for call in ast.walk(statement)
    )


@dataclass
class LineChange:
    """A change of lines; the first line is that of the culprit."""

    places: list[Place]
    narrow: bool = False  # rewritten expressions have 16-bit results
    _mode: Any = None

    def begin(self) -> None:
        """Change the calls that follow."""
        self._mode = self._make()
        self._mode.__enter__()

    def end(self) -> None:
        """Change no further call."""
        self._mode.__exit__(None, None, None)

    def _make(self) -> Any:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Return what was changed, as fields of the result of a trial."""
        return {}


class StableOperations(LineChange):
    """Stable operations on a line."""

    def _make(self) -> Any:
        return StableSubstitution(self.places)

    def facts(self) -> dict[str, Any]:
        used = set().union(*self._mode.used.values())
        return {
            "stable": tuple(sorted(form.name for form in used)),
            "limits": not all(form.exact for form in used),
        }


class StableComposition(LineChange):
    """The stable forms of all compositions in the function around a line."""

    def _make(self) -> Any:
        path, line = self.places[0]
        file = SourceFile.read(path)
        function = None if file is None else file.function_at(line)
        first, last = line, line
        if function is not None:
            first, last = function.lineno, function.end_lineno or last
        return CompositionRewrite(
            lambda at: at[0] == path and first <= at[1] <= last, narrow=self.narrow
        )

    def facts(self) -> dict[str, Any]:
        here = self.places[0]
        involved = [one for one in self._mode.found if here in one.lines]
        if not involved or not self._mode.replaced:
            return {}
        inside = [one for one in self._mode.found if one.place[0] == here[0]]
        texts = "; ".join(dict.fromkeys(one.composition.text for one in involved))
        places = ", ".join(dict.fromkeys(f"{one.place[0]}:{one.place[1]}" for one in involved))
        cast = self._mode.narrowed
        back = f", with a result in {cast.replace('half', 'float16')}" if cast else ""
        patch = _patch(involved, inside, f".{cast}()" if cast else "")
        return {"rewrite": f"At {places} write {texts}{back}.", "patch": patch}


def _patch(involved: list[Found], inside: list[Found], cast: str) -> str:
    file = SourceFile.read(involved[0].place[0])
    if file is None:
        return ""
    lines = sorted({one.place[1] for one in inside})
    certain = {line for line in lines if patch_line(file, line, cast=cast)}
    return file.patch() if {one.place[1] for one in involved} <= certain else ""


class InFP32(LineChange):
    """Statements in FP32: those of the lines; with those before that lead there; or of their functions."""

    _FIND = staticmethod(statements_at)

    def _make(self) -> Any:
        self._list = self._FIND(self.places)
        return UncastStatements(self._list)

    def facts(self) -> dict[str, Any]:
        return {"patch": patch_uncast(self._mode, self._list) if self._mode.half else ""}


def _slices(places: list[Place]) -> list[Statement]:
    found = statements_at(places)
    before = [one for statement in found for one in statements_before(*statement)]
    return list({id(one): (file, one) for file, one in (*before, *found)}.values())


def _functions(places: list[Place]) -> list[Statement]:
    return [one for place in places for one in statements_of_function(place)]


class SliceInFP32(InFP32):
    """Statements in FP32: those of the lines, and those before them that lead there."""

    _FIND = staticmethod(_slices)


class FunctionInFP32(InFP32):
    """Statements in FP32: those of the functions around the lines."""

    _FIND = staticmethod(_functions)


CHANGES = {
    "stable": StableOperations,
    "composition": StableComposition,
    "statement": InFP32,
    "slice": SliceInFP32,
    "function": FunctionInFP32,
}


def line_change(kind: str, places: Sequence[Place], *, narrow: bool = False) -> LineChange | None:
    """Return the change of a kind of trial, or None if it changes no line."""
    change = CHANGES.get(kind)
    return None if change is None or not places else change(list(places), narrow)
