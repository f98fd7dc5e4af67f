"""Apply fixes in passes of edits that do not touch each other, until no fix is left.

A result that does not parse is never written. Edits change no other byte, so comments and formatting stay.

A fix also removes what it leaves without a use: names that were used before it and are not used after it.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from halfguard.lint.engine import lint_bytes, parse
from halfguard.lint.expressions import called_name, name_of
from halfguard.lint.match import Diagnostic, Edit, Fix, FixKind, Span
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.rule import Rule
from halfguard.lint.settings import Settings
from halfguard.lint.source import Source, UnreadableError

_MAX_PASSES = 10
_Range = tuple[tuple[int, int], tuple[int, int]]  # (line, column) of the start and of the end


@dataclass(frozen=True)
class FixResult:
    """A file after its fixes, with the number of fixes and the remaining findings."""

    data: bytes
    applied: int
    remaining: list[Diagnostic]


def fix_bytes(
    data: bytes, path: str, settings: Settings, rules: tuple[Rule, ...], kinds: tuple[FixKind, ...],
    project: Project = UNKNOWN,
) -> FixResult:  # fmt: skip
    """Apply every fix of these kinds to one file."""
    applied = 0
    found = lint_bytes(data, path, settings, rules, project)
    for _ in range(_MAX_PASSES):
        fixes = _without_overlaps(d.fix for d in found if d.fix and d.fix.kind in kinds)
        changed = _apply(data, fixes) if fixes else None
        if changed is None or changed == data:
            break
        data, applied = changed, applied + len(fixes)
        found = lint_bytes(data, path, settings, rules, project)
    return FixResult(data, applied, found)


def _without_overlaps(fixes: Iterable[Fix | None]) -> list[Fix]:
    """Return the fixes for one pass: no two of their edits touch."""
    chosen: list[Fix] = []
    taken: list[_Range] = []
    for fix in fixes:
        if fix is None:
            continue
        ranges = [(edit.span.begin, edit.span.end) for edit in fix.edits]
        if all(_is_free(taken, edited) for edited in ranges):
            chosen.append(fix)
            for edited in ranges:
                insort(taken, edited)
    return chosen


def _is_free(taken: list[_Range], new: _Range) -> bool:
    """Return whether a range touches no taken one; these are sorted and do not touch each other."""
    at = bisect_left(taken, new)
    before, after = taken[max(0, at - 1) : at], taken[at : at + 1]
    return all(end < new[0] for _, end in before) and all(start > new[1] for start, _ in after)


def _apply(data: bytes, fixes: list[Fix]) -> bytes | None:
    """Return the file after one pass, or None if the result does not parse."""
    try:
        source = Source.decode(data)
        text = source.apply_edits([edit for fix in fixes for edit in fix.edits])
        changed = Source(text)
        leftovers = find_leftovers(parse(source), parse(changed), changed)
        text = changed.apply_edits(leftovers)
        body = parse(Source(text)).body
        needed = sorted({name for fix in fixes for name in fix.imports})
        missing = [name for name in needed if not _is_imported(body, name)]
        if missing:
            text = _with_imports(text, body, missing)
            parse(Source(text))
        return source.encode(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, UnreadableError):
        return None


def _is_imported(body: list[ast.stmt], name: str) -> bool:
    """Return whether the file has ``import name`` at module level, without ``as``."""
    return any(
        isinstance(node, ast.Import)
        and any(a.name.partition(".")[0] == name and a.asname is None for a in node.names)
        for node in body
    )


def _with_imports(text: str, body: list[ast.stmt], names: list[str]) -> str:
    """Add imports below those at the top of a file."""
    source, last = Source(text), _end_of_imports(body)
    if last and not source.lines[last - 1].endswith((b"\n", b"\r")):
        raise ValueError("the last line is not ended")
    added = "".join(f"import {name}{source.newline}" for name in names)
    return source.apply_edits([Edit(Span(last + 1, 0, last + 1, 0), added)])


def _end_of_imports(body: list[ast.stmt]) -> int:
    """Return the number of lines with comments, docstring and imports at the top of a file."""
    last = 0
    for node in body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if first <= last:
            raise ValueError("two statements share a line")
        if not isinstance(node, ast.Import | ast.ImportFrom) and not (is_docstring and last == 0):
            return last or first - 1
        last = node.end_lineno or node.lineno
    return last


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
