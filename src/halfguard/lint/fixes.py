"""Fixes applied: edits that do not touch each other, pass after pass, until nothing is left to do.

One idea: a result that does not parse is never written. Edits keep every byte outside themselves, so
comments and formatting stay; libcst, imported only here, puts missing imports where they belong.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from halfguard.lint.engine import Diagnostic, lint_bytes, parse
from halfguard.lint.match import Fix, FixKind
from halfguard.lint.rule import Rule
from halfguard.lint.settings import Settings
from halfguard.lint.source import Source, UnreadableError

_MAX_PASSES = 10
_Place = tuple[int, int]


@dataclass(frozen=True)
class Fixed:
    """A file after its fixes: the bytes, how many were applied, and what is still found."""

    data: bytes
    applied: int
    left: list[Diagnostic]


def fix_bytes(
    data: bytes, path: str, settings: Settings, rules: tuple[Rule, ...], kinds: tuple[FixKind, ...]
) -> Fixed:
    """Apply every fix of these kinds to one file."""
    applied = 0
    found = lint_bytes(data, path, settings, rules)
    for _ in range(_MAX_PASSES):
        fixes = _compatible(d.fix for d in found if d.fix and d.fix.kind in kinds)
        changed = _apply(data, fixes) if fixes else None
        if changed is None or changed == data:
            break
        data, applied = changed, applied + len(fixes)
        found = lint_bytes(data, path, settings, rules)
    return Fixed(data, applied, found)


def _compatible(fixes: Iterable[Fix | None]) -> list[Fix]:
    """The fixes that can be applied in one pass: none of whose edits touch."""
    chosen: list[Fix] = []
    taken: list[tuple[_Place, _Place]] = []
    for fix in fixes:
        if fix is None:
            continue
        places = [
            ((e.span.line, e.span.column), (e.span.end_line, e.span.end_column)) for e in fix.edits
        ]
        if all(_is_free(taken, place) for place in places):
            chosen.append(fix)
            for place in places:
                insort(taken, place)
    return chosen


def _is_free(taken: list[tuple[_Place, _Place]], place: tuple[_Place, _Place]) -> bool:
    """Whether a range touches none of those taken, which are sorted and do not touch each other."""
    at = bisect_left(taken, place)
    before, after = taken[max(0, at - 1) : at], taken[at : at + 1]
    return all(end < place[0] for _, end in before) and all(begin > place[1] for begin, _ in after)


def _apply(data: bytes, fixes: list[Fix]) -> bytes | None:
    """The file after one pass, or None where the result would not be Python any more."""
    try:
        source = Source.decode(data)
        text = source.edited([edit for fix in fixes for edit in fix.edits])
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
    """Whether ``import name`` stands at the top level, under that very name."""
    return any(
        isinstance(node, ast.Import)
        and any(a.name.partition(".")[0] == name and a.asname is None for a in node.names)
        for node in body
    )


def _with_imports(text: str, body: list[ast.stmt], names: list[str]) -> str:
    """Add imports to the head of a file: libcst is thorough and slow, and never needs to see the rest."""
    import libcst  # noqa: PLC0415
    from libcst.codemod import CodemodContext  # noqa: PLC0415
    from libcst.codemod.visitors import AddImportsVisitor  # noqa: PLC0415

    context = CodemodContext()
    for name in names:
        AddImportsVisitor.add_needed_import(context, name)
    source = Source(text)
    split = _head(body)
    head, rest = (b"".join(part).decode() for part in (source.lines[:split], source.lines[split:]))
    try:
        return AddImportsVisitor(context).transform_module(libcst.parse_module(head)).code + rest
    except libcst.ParserSyntaxError as error:
        raise ValueError(str(error)) from error


def _head(body: list[ast.stmt]) -> int:
    """How many lines the comments, the docstring and the first imports take."""
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
