"""Findings as SARIF 2.1.0, for code-scanning services and editors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.registry import all_rules
from halfguard.lint.rule import Rule
from halfguard.lint.run import FileResult

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(results: Sequence[FileResult]) -> str:
    """Return a SARIF log with one run."""
    import importlib.metadata  # noqa: PLC0415

    found = [d for result in results for d in result.diagnostics]
    used = {d.code for d in found}
    rules = [rule for rule in all_rules() if rule.code in used]
    index = {rule.code: number for number, rule in enumerate(rules)}
    driver = {
        "name": "halfguard",
        "version": importlib.metadata.version("halfguard"),
        "rules": [_rule(rule) for rule in rules],
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


def _rule(rule: Rule) -> dict[str, Any]:
    title = rule.page.partition("\n")[0]
    return {
        "id": rule.code,
        "name": rule.meta.name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": rule.meta.cure},
        "help": {"text": rule.page, "markdown": rule.page},
        "defaultConfiguration": {"level": rule.meta.severity},
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
        "message": {"text": f"{finding.message} {finding.cure}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.path or "")},
                    "region": region,
                }
            }
        ],
    }


def _uri(path: str) -> str:
    """Return a relative reference for a relative path, and a file URI for an absolute one."""
    from urllib.parse import quote  # noqa: PLC0415

    return Path(path).as_uri() if Path(path).is_absolute() else quote(Path(path).as_posix())
