"""Run statements of the user's code in FP32: the cure for a fault outside every module, such as in a loss.

Half tensors that a statement uses are cast to float32, and autocast is off for it. Its result stays in
float32, so what follows in the same function is computed in float32 too. A statement that calls a module
keeps autocast: only the module's result is cast.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.autocast_ops import RULES, AutocastRule
from halfguard.precision.modes import HALF_DTYPES, full_precision
from halfguard.precision.upcast import cast_to_fp32
from halfguard.repairs.source_file import SIMPLE, SourceFile, inner_scopes, is_shadowed
from halfguard.replaying.function_modes import (
    FunctionMode,
    Place,
    map_arguments,
    writes_first,
)
from halfguard.step.nested import tensors_in
from halfguard.tracing.source import user_frame

Statement = tuple[SourceFile, ast.stmt]


def statements_at(places: list[Place]) -> list[Statement]:
    """Return the statement of each place; those whose source cannot be read are left out."""
    files = {path: SourceFile.read(path) for path, _ in places}
    found = list[Statement]()
    for path, line in places:
        file = files[path]
        statement = None if file is None else file.statement_at(line)
        if file is not None and isinstance(statement, SIMPLE):
            found.append((file, statement))
    return found


def statements_of_function(place: Place) -> list[Statement]:
    """Return the simple statements of the function around a line."""
    file = SourceFile.read(place[0])
    function = None if file is None else file.function_at(place[1])
    if file is None or function is None:
        return []
    nodes = (node for node in ast.walk(function) if isinstance(node, SIMPLE))
    return [(file, node) for node in nodes if file.function_at(node.lineno) is function]


def statements_before(file: SourceFile, statement: ast.stmt) -> list[Statement]:
    """Return assignments before a statement, in the same function or module, that its value depends on."""
    scope = file.function_at(statement.lineno)
    inside = [
        node
        for node in ast.walk(scope or file.tree)
        if isinstance(node, ast.Assign)
        and node.lineno < statement.lineno
        and file.function_at(node.lineno) is scope
    ]
    needed, found = _names(statement, ast.Load), list[Statement]()
    for node in sorted(inside, key=lambda node: -node.lineno):
        if _names(node, ast.Store) & needed and len(found) < _MOST_BEFORE:
            found.insert(0, (file, node))
            needed |= _names(node, ast.Load)
    return found


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in nodes if isinstance(node.ctx, context)}


_MOST_BEFORE = 12
_LOWERED = frozenset(
    {"rmatmul"}.union(op for op, rule in RULES.items() if rule is AutocastRule.LOWER)
)
_DTYPE = Tensor.dtype.__get__  # type: ignore[attr-defined]


class StatementsInFP32(FunctionMode):
    """Runs the calls of statements in FP32; ``half`` collects the expressions that were half there."""

    def __init__(self, statements: list[Statement]) -> None:
        super().__init__()
        self._statements = statements
        self.half: dict[ast.stmt, set[ast.expr]] = {}
        self.needs_block: set[ast.stmt] = set()  # autocast would lower something in them
        self._calls_module: set[ast.stmt] = set()
        self._tensors: dict[ast.stmt, ast.expr] = {}  # one tensor of each statement

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        is_property = name in ("__get__", "__set__")
        if is_property and func is not _DTYPE:
            return func(*args, **kwargs)
        found = self._statement()
        if found is not None and is_property:  # x.float().dtype
            return torch.float32 if args[0].dtype in HALF_DTYPES else args[0].dtype
        if found is None:
            return func(*args, **kwargs)
        frame, statement = found
        self._look(frame, statement)
        if statement in self._calls_module:
            if _is_inside_module(frame):
                return func(*args, **kwargs)
        elif name.strip("_") in _LOWERED:
            self.needs_block.add(statement)
        tensors = list(tensors_in((args, kwargs)))
        kept = 1 if writes_first(name) else 0
        with self._autocast(statement, tensors):
            wide = map_arguments(cast_to_fp32, tuple(args[kept:]))
            return func(*args[:kept], *wide, **map_arguments(cast_to_fp32, kwargs))

    def tensor(self, statement: ast.stmt) -> ast.expr | None:
        """Return an expression of a statement that is a tensor."""
        return self._tensors.get(statement)

    def _statement(self) -> tuple[FrameType, ast.stmt] | None:
        frame = user_frame()
        if frame is None:
            return None
        for file, statement in self._statements:
            inside = statement.lineno <= frame.f_lineno <= (statement.end_lineno or 0)
            if inside and frame.f_code.co_filename == file.path:
                return frame, statement
        return None

    def _autocast(self, statement: ast.stmt, tensors: list[Tensor]) -> AbstractContextManager[Any]:
        if statement in self._calls_module or not tensors:
            return nullcontext()
        return full_precision(tensors[0].device.type)

    def _look(self, frame: FrameType, statement: ast.stmt) -> None:
        """Note which expressions of a statement are half tensors, and whether it calls a module."""
        seen = self.half.setdefault(statement, set())
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(_value(node.func, frame), nn.Module):
                self._calls_module.add(statement)
                if node is not getattr(statement, "value", None):
                    seen.add(node)  # its result; one that is assigned is cast where it is used
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                value = _value(node, frame) if isinstance(node.ctx, ast.Load) else None
                if isinstance(value, Tensor):
                    self._tensors.setdefault(statement, node)
                if isinstance(value, Tensor) and value.dtype in HALF_DTYPES:
                    seen.add(node)


def patch_statements(mode: StatementsInFP32, statements: list[Statement]) -> str:
    """Return a patch that casts what was half in the statements; empty if it is not certain."""
    files = {file.path: file for file, _ in statements}
    for file, statement in statements:
        nodes = list(_outermost(statement, mode.half.get(statement, set())))
        is_changed = bool(nodes) or statement in mode.needs_block
        if is_changed and (not file.is_alone(statement) or is_shadowed(statement)):
            return ""
        for node in nodes:
            files[file.path].append(node, ".float()")
        if statement in mode.needs_block:
            tensor = mode.tensor(statement)
            if tensor is None or inner_scopes(statement):
                return ""  # a block around a lambda is not one around its calls
            device = f"{file.source(tensor)}.device.type"
            files[file.path].indent(statement, f"with torch.autocast({device}, enabled=False):")
    patches = [file.patch() for file in files.values() if file.edits]
    return "\n".join(patches) if all(patches) else ""


def _outermost(node: ast.AST, wanted: set[ast.expr]) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) and child in wanted:
            yield child
        else:
            yield from _outermost(child, wanted)


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a name, an attribute or an entry in a frame, without calling anything."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr, None)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        try:
            return _value(node.value, frame)[node.slice.value]
        except (LookupError, TypeError):
            return None
    return None


def _is_inside_module(user: FrameType) -> bool:
    """Return whether a call was made by a module of torch that a user's line called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not user:
        if "torch/nn/modules" in frame.f_code.co_filename.replace("\\", "/"):
            return True
        frame = frame.f_back
    return False
