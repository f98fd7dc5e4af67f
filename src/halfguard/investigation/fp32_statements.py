"""Statements in FP32, with their own casts to half left out: ``x.half()`` there means ``x.float()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.fp32_lines import Statement, StatementsInFP32, patch_statements
from halfguard.replaying.source_edits import SourceFile

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
