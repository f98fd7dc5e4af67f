"""Findings as text (source line, caret, cure) and as a JSON list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.run import FileResult

_WIDTH = 120  # source lines are cut to this; generated code may have lines of megabytes


def to_text(results: Sequence[FileResult]) -> str:
    """Return every finding with its source line, and a summary at the end."""
    blocks = ["\n".join(_block(d)) for result in results for d in result.diagnostics]
    return "\n\n".join([*blocks, _summary(results)]) + "\n"


def _block(diagnostic: Diagnostic) -> Iterator[str]:
    finding = diagnostic
    mark = {"safe": " [*]", "unsafe": " [-]"}.get(diagnostic.fix.kind if diagnostic.fix else "", "")
    yield f"{finding.place}: {finding.code}{mark} {finding.message}"
    number = str(finding.line)
    margin = " " * len(number)
    start = (finding.column or 1) - 1
    line = diagnostic.snippet.replace("\t", " ")
    if line.strip():
        cut = max(0, start - _WIDTH // 2) if len(line) > _WIDTH else 0
        shown = line[cut : cut + _WIDTH].rstrip()
        carets = max(1, min(diagnostic.end_column - 1, cut + len(shown)) - start)
        yield f" {number} | {shown}"
        yield f" {margin} | {' ' * (start - cut)}{'^' * carets}"
    yield f" {margin} = {finding.cure}"


def _summary(results: Sequence[FileResult]) -> str:
    found = [d for result in results for d in result.diagnostics]
    applied = sum(result.applied for result in results)
    lines = [f"Applied {_count(applied, 'fix', 'fixes')}."] if applied else []
    if not found:
        return "\n".join([*lines, "Nothing found."])
    files = sum(bool(result.diagnostics) for result in results)
    lines.append(f"Found {_count(len(found), 'problem')} in {_count(files, 'file')}.")
    safe = sum(1 for d in found if d.fix and d.fix.kind == "safe")
    unsafe = sum(1 for d in found if d.fix and d.fix.kind == "unsafe")
    if safe:
        lines.append(f"[*] {safe} fixable with --fix.")
    if unsafe:
        lines.append(f"[-] {unsafe} fixable with --fix --unsafe-fixes.")
    lines.append(f"'halfguard rule {found[0].code}' explains the first.")
    return "\n".join(lines)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def to_json(results: Sequence[FileResult]) -> str:
    """Return a JSON list of findings, each with code, path, line, column, message and fix."""
    rows = [_row(d) for result in results for d in result.diagnostics]
    return json.dumps(rows, indent=2) + "\n"


def _row(diagnostic: Diagnostic) -> dict[str, object]:
    """Return the fields of a ``Finding`` record, with the end, the kind of the fix and a notebook's cell."""
    names = ("code", "message", "severity", "path", "line", "column", "subject")
    fields: dict[str, object] = {name: getattr(diagnostic, name) for name in names}
    kind = diagnostic.fix.kind if diagnostic.fix else None
    rest = {"why": "", "cure": diagnostic.cure, "fix": diagnostic.fix_text}
    return {
        **fields,
        **rest,
        "end_line": diagnostic.span.end_line,
        "fix_kind": kind,
        "cell": diagnostic.cell,
    }
