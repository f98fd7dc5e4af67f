"""Changes of the user's own lines, made by function modes while the bad step runs.

They are those of ``replay``: stable operations on the culprit's line, the stable form of a composition of
operations, and statements in FP32, whose own casts are left out: ``x.half()`` there means ``x.float()``. Each
can tell what it did, and how to write it in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfguard.investigation.passes import TrialPlan
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
    """A change of lines that does nothing."""

    place: Place

    def begin(self) -> None:
        """Change the calls that follow."""

    def facts(self) -> dict[str, Any]:
        """Return what was changed, as fields of a ``TrialResult``."""
        return {}


class StableOperations(LineChange):
    """Stable operations on one line."""

    def begin(self) -> None:
        self._mode = StableSubstitution([self.place])
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def facts(self) -> dict[str, Any]:
        used = set().union(*self._mode.used.values())
        return {
            "stable": tuple(sorted(form.name for form in used)),
            "limits": not all(form.exact for form in used),
        }


class StableComposition(LineChange):
    """The stable forms of all compositions in the function around a line."""

    def begin(self) -> None:
        file = SourceFile.read(self.place[0])
        function = None if file is None else file.function_at(self.place[1])
        first, last = self.place[1], self.place[1]
        if function is not None:
            first, last = function.lineno, function.end_lineno or last
        self._mode = CompositionRewrite(
            lambda place: place[0] == self.place[0] and first <= place[1] <= last
        )
        self._mode.__enter__()

    def facts(self) -> dict[str, Any]:
        involved = [one for one in self._mode.found if self.place in one.lines]
        if not involved or not self._mode.replaced:
            return {}
        inside = [one for one in self._mode.found if one.place[0] == self.place[0]]
        texts = "; ".join(dict.fromkeys(one.composition.text for one in involved))
        places = ", ".join(dict.fromkeys(f"{one.place[0]}:{one.place[1]}" for one in involved))
        return {"rewrite": f"At {places} write {texts}.", "patch": _patch(involved, inside)}


def _patch(involved: list[Found], inside: list[Found]) -> str:
    file = SourceFile.read(involved[0].place[0])
    if file is None:
        return ""
    lines = sorted({one.place[1] for one in inside})
    certain = {line for line in lines if patch_line(file, line)}
    return file.patch() if {one.place[1] for one in involved} <= certain else ""


class InFP32(LineChange):
    """Statements in FP32: that of the line."""

    def begin(self) -> None:
        self._list = self._statements()
        self._mode = UncastStatements(self._list)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _statements(self) -> list[Statement]:
        return statements_at([self.place])

    def facts(self) -> dict[str, Any]:
        return {"patch": patch_uncast(self._mode, self._list) if self._mode.half else ""}


class SliceInFP32(InFP32):
    """Statements in FP32: that of the line, and those before it that lead to it."""

    def _statements(self) -> list[Statement]:
        found = statements_at([self.place])
        return [*statements_before(*found[0]), *found] if found else []


class FunctionInFP32(InFP32):
    """Statements in FP32: those of the function around the line."""

    def _statements(self) -> list[Statement]:
        return statements_of_function(self.place)


CHANGES = {
    "stable": StableOperations,
    "composition": StableComposition,
    "statement": InFP32,
    "slice": SliceInFP32,
    "function": FunctionInFP32,
}


def line_change(trial: TrialPlan) -> LineChange | None:
    """Return the change of a trial, or None if it changes no line."""
    kind = CHANGES.get(trial.kind)
    return None if kind is None or trial.place is None else kind(trial.place)
