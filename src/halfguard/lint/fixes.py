"""Apply fixes in passes of edits that do not touch each other, until no fix is left.

A result that does not parse is never written. Edits change no other byte, so comments and formatting stay.
libcst, which only this file imports, adds missing imports in the right place.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.engine import lint_bytes, parse
from halfguard.lint.leftovers import find_leftovers
from halfguard.lint.match import Fix, FixKind
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


def whole_edit(text: str, fix: Fix) -> str | None:
    """Return a text after one fix, with imports added and leftovers removed; None if it does not parse."""
    data = _apply(text.encode("utf-8", "surrogatepass"), [fix])
    return None if data is None else data.decode("utf-8", "surrogatepass")


def _without_overlaps(fixes: Iterable[Fix | None]) -> list[Fix]:
    """Return the fixes for one pass: no two of their edits touch."""
    chosen: list[Fix] = []
    taken: list[_Range] = []
    for fix in fixes:
        if fix is None:
            continue
        ranges = [
            ((e.span.line, e.span.column), (e.span.end_line, e.span.end_column)) for e in fix.edits
        ]
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
    """Add imports; libcst is slow, so it gets only the lines up to the last import at the top."""
    import libcst  # noqa: PLC0415
    from libcst.codemod import CodemodContext  # noqa: PLC0415
    from libcst.codemod.visitors import AddImportsVisitor  # noqa: PLC0415

    context = CodemodContext()
    for name in names:
        AddImportsVisitor.add_needed_import(context, name)
    source = Source(text)
    split = _end_of_imports(body)
    head, rest = (b"".join(part).decode() for part in (source.lines[:split], source.lines[split:]))
    try:
        return AddImportsVisitor(context).transform_module(libcst.parse_module(head)).code + rest
    except libcst.ParserSyntaxError as error:
        raise ValueError(str(error)) from error


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
