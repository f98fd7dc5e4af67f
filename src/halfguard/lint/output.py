"""Output formats: text (source line, caret, cure), a JSON list, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from halfguard.catalogue import Entry, entry
from halfguard.lint.match import Diagnostic
from halfguard.lint.run import FileResult

_WIDTH = 120  # source lines are cut to this; generated code may have lines of megabytes


def to_text(results: Sequence[FileResult]) -> str:
    """Return every finding with its source line, and a summary at the end."""
    found = [d for result in results for d in result.diagnostics]
    blocks = ["\n".join(_block(d)) for d in found if not d.condition]
    notes = [f"{d.place}: {d.code} {_message(d)}" for d in found if d.condition]
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else []), _summary(results)]) + "\n"


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
        return "\n".join([*lines, f"No problems in {_count(len(results), 'file')}."])
    certain = [d for d in found if not d.condition]
    files = len({d.path for d in certain})
    lines.append(f"Found {_count(len(certain), 'problem')} in {_count(files, 'file')}.")
    if len(found) > len(certain):
        notes = _count(len(found) - len(certain), "note")
        lines.append(f"{notes}: the project does not show that the condition is met.")
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
    """Return the fields of a ``Finding`` record, with the end and the kind of the fix."""
    names = ("code", "message", "severity", "condition", "path", "line", "column", "subject")
    fields: dict[str, object] = {name: getattr(diagnostic, name) for name in names}
    kind = diagnostic.fix.kind if diagnostic.fix else None
    rest = {
        "why": entry(diagnostic.code).title,
        "cure": diagnostic.cure,
        "fix": diagnostic.fix_text,
    }
    return {**fields, **rest, "end_line": diagnostic.span.end_line, "fix_kind": kind}


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(results: Sequence[FileResult]) -> str:
    """Return a SARIF log with one run."""
    import importlib.metadata  # noqa: PLC0415

    found = [d for result in results for d in result.diagnostics]
    used = sorted({d.code for d in found})
    index = {code: number for number, code in enumerate(used)}
    driver = {
        "name": "halfguard",
        "version": importlib.metadata.version("halfguard"),
        "rules": [_rule(entry(code)) for code in used],
    }
    body = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                # The columns of a finding count characters, not UTF-16 units.
                "columnKind": "unicodeCodePoints",
                "results": [_result(d, index) for d in found],
            }
        ],
    }
    return json.dumps(body, indent=2) + "\n"


def _rule(rule: Entry) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.cure},
        "help": {"text": rule.page, "markdown": rule.page},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(diagnostic: Diagnostic, index: dict[str, int]) -> dict[str, Any]:
    finding, span = diagnostic, diagnostic.span
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if span.end_line == span.line and diagnostic.end_column > (finding.column or 1):
        region["endColumn"] = diagnostic.end_column
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": finding.severity,
        "message": {"text": f"{_message(finding)} {finding.cure}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.path or "")},
                    "region": region,
                }
            }
        ],
    }


def _message(finding: Diagnostic) -> str:
    """Return the message of a finding, with the condition that it depends on."""
    return (
        f"Only if {finding.condition}: {finding.message}" if finding.condition else finding.message
    )


def _uri(path: str) -> str:
    """Return a relative reference for a relative path, and a file URI for an absolute one."""
    from urllib.parse import quote  # noqa: PLC0415

    return Path(path).as_uri() if Path(path).is_absolute() else quote(Path(path).as_posix())


_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def to_github(results: Sequence[FileResult]) -> str:
    """Return one workflow command per finding."""
    lines = [
        f"::{_LEVELS[f.severity]} file={_escape_property(f.path)},line={f.line},col={f.column},"
        f"title={_escape_property(f'{f.code} {f.subject}')}::{_escape_data(f'{_message(f)} {f.cure}')}"
        for result in results
        for f in result.diagnostics
    ]
    return "".join(f"{line}\n" for line in lines)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[Sequence[FileResult]], str]] = MappingProxyType(
    {"text": to_text, "json": to_json, "sarif": to_sarif, "github": to_github}
)
