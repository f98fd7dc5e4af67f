"""Apply fixes in passes of edits that do not touch each other, until no fix is left.

A result that does not parse is never written. Edits change no other byte, so comments and formatting stay.
Imports that a fix leaves without a use are removed.
"""

from __future__ import annotations

import ast
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from halfguard.lint.engine import lint_bytes, parse
from halfguard.lint.match import Diagnostic, Fix, FixKind
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.rule import Rule
from halfguard.lint.settings import Settings
from halfguard.lint.source import Source, UnreadableError
from halfguard.repairs.source_file import SourceFile

_MAX_PASSES = 10


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
    taken: list[tuple[int, int]] = []  # sorted
    for fix in fixes:
        ranges = [(begin, end) for begin, end, _ in fix.edits] if fix is not None else []
        if fix is not None and all(_is_free(taken, edited) for edited in ranges):
            chosen.append(fix)
            for edited in ranges:
                insort(taken, edited)
    return chosen


def _is_free(taken: list[tuple[int, int]], new: tuple[int, int]) -> bool:
    """Return whether a range touches no taken one."""
    at = bisect_left(taken, new)
    before, after = taken[max(0, at - 1) : at], taken[at : at + 1]
    return all(end < new[0] for _, end in before) and all(begin > new[1] for begin, _ in after)


def _apply(data: bytes, fixes: list[Fix]) -> bytes | None:
    """Return the file after one pass, or None if the result does not parse."""
    try:
        source = Source.decode(data)
        before = parse(source)
        file = SourceFile("", source.text, before)
        file.edits = {(a, b): text.encode() for fix in fixes for a, b, text in fix.edits}
        text = _without_leftovers(before, file.after())
        return text.encode(source.encoding) if text else None
    except (SyntaxError, ValueError, RecursionError, MemoryError, UnreadableError):
        return None


def _without_leftovers(before: ast.Module, text: str) -> str:
    """Return a changed source without the imports whose names were used before and are not used any more."""
    file = SourceFile("", text, parse(Source(text)))
    dead = _used(before) - _used(file.tree)
    # An import in a ``try`` may be a fallback for another version.
    tries = [node for node in ast.walk(file.tree) if isinstance(node, ast.Try)] if dead else []
    tried = {node for one in tries for node in ast.walk(one)}
    lines = Source(text).lines
    for node in ast.walk(file.tree) if dead else ():
        if not isinstance(node, ast.Import | ast.ImportFrom) or node in tried:
            continue
        kept = [a for a in node.names if (a.asname or a.name) not in dead]
        if len(kept) == len(node.names) or b"#" in b"".join(
            lines[node.lineno - 1 : node.end_lineno]
        ):
            continue
        if not kept:
            file.remove(node)
        else:
            module = (
                f"{'.' * node.level}{node.module or ''}" if isinstance(node, ast.ImportFrom) else ""
            )
            names = ", ".join(map(ast.unparse, kept))
            file.replace(node, f"from {module} import {names}" if module else f"import {names}")
    return file.after() if file.edits else text


def _used(tree: ast.Module) -> set[str]:
    """Return the names that are used; the strings of ``__all__`` count as well."""
    found = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found |= {str(p.value) for p in ast.walk(node.value) if isinstance(p, ast.Constant)}
    return found
