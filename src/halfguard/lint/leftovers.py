"""Remove what a fix leaves without a use: an import, or a variable that only the replaced code read.

Only names that were used before the fix and are not used after it are removed, so nothing else changes.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of
from halfguard.lint.match import Edit, Span
from halfguard.lint.source import Source

# A variable is removed with its value only if the value has no other effect.
_PURE = {"softmax", "sigmoid"}
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def find_leftovers(before: ast.Module, after: ast.Module, source: Source) -> list[Edit]:
    """Return edits that remove the leftovers of a fix from the source after it."""
    edits: list[Edit] = []
    old_scopes, new_scopes = _scopes(before), _scopes(after)
    if len(old_scopes) != len(new_scopes):
        return []
    for old_scope, new_scope in zip(old_scopes, new_scopes, strict=True):
        old, new = _used(old_scope), _used(new_scope)
        dead = {name for name in old if old[name] and not new[name]}
        for block in _blocks(new_scope) if dead else ():
            found = (_edit(source, s, dead, is_only=len(block) == 1) for s in block)
            edits += [edit for edit in found if edit is not None and edit not in edits]
    return edits


def _scopes(module: ast.Module) -> list[_Scope]:
    """Return the module and its functions; a fix adds none and removes none."""
    functions = [
        n for n in ast.walk(module) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [module, *functions]


def _used(scope: _Scope) -> Counter[str]:
    """Count the uses of every name; the strings of ``__all__`` count as well."""
    found: Counter[str] = Counter()
    for node in ast.walk(scope):
        if isinstance(node, ast.Name):
            found[node.id] += not isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Assign) and name_of(node.targets[0]) == "__all__":
            parts = (p.value for p in ast.walk(node.value) if isinstance(p, ast.Constant))
            found.update(part for part in parts if isinstance(part, str))
    return found


def _blocks(scope: _Scope) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Try | ast.ExceptHandler):
            continue  # an import here may be a fallback for another version
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _edit(source: Source, statement: ast.stmt, dead: set[str], *, is_only: bool) -> Edit | None:
    if isinstance(statement, ast.ImportFrom | ast.Import):
        kept = [a for a in statement.names if (a.asname or a.name) not in dead]
        if len(kept) == len(statement.names):
            return None
        if kept:
            return _replaced_import(source, statement, kept)
        return Edit(Span.of(statement), "pass") if is_only else _removed(source, statement)
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        target = statement.targets[0]
        is_dead = isinstance(target, ast.Name) and target.id in dead and len(statement.targets) == 1
        if is_dead and called_name(statement.value) in _PURE and not is_only:
            return _removed(source, statement)
    return None


def _replaced_import(
    source: Source, statement: ast.ImportFrom | ast.Import, kept: list[ast.alias]
) -> Edit | None:
    span = Span.of(statement)
    if "#" in source.text_at(span):
        return None
    if isinstance(statement, ast.Import):
        return Edit(span, ast.unparse(ast.Import(kept)))
    return Edit(span, ast.unparse(ast.ImportFrom(statement.module, kept, statement.level)))


def _removed(source: Source, statement: ast.stmt) -> Edit | None:
    """Remove the lines of a statement, unless another statement or a comment shares them."""
    span = Span.of(statement)
    before = source.lines[span.line - 1][: span.column]
    after = source.lines[span.end_line - 1][span.end_column :]
    if before.strip() or after.strip() or span.end_line >= len(source.lines):
        return None
    return Edit(Span(span.line, 0, span.end_line + 1, 0), "")
