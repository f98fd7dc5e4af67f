"""One file in, its findings out.

One idea: work is refused as early as possible. A file without any word that a rule looks for is not
decoded; only the rules whose words are there run; and libcst is imported by ``fixes`` alone.
"""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from halfguard.lint.match import Fix, Match, Span
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta, Rule, Words
from halfguard.lint.settings import Settings
from halfguard.lint.source import Source, UnreadableError
from halfguard.lint.suppress import is_ignored
from halfguard.lint.yamlfile import YamlFile
from halfguard.records import Finding

UNREADABLE = "HG001"
# Punctuation counts the pieces that a parser makes. The largest file of torch and transformers, 1.4 MB of
# tests, has 125,000; a file with far more is data, and would take seconds.
_PUNCTUATION = b",.[](){}+-*/=:@<>!%&|^~"
_MAX_PIECES = 200_000
_MAX_BYTES = 4_000_000
# Without one of these a Python file is about something else.
_ABOUT = (b"torch", b"lightning", b"transformers", b"accelerate")


@dataclass(frozen=True)
class Diagnostic:
    """A finding with what only lint knows: its range, its line, its edits."""

    finding: Finding
    span: Span
    end_column: int  # characters from 1, on the first line
    snippet: str
    fix: Fix | None


def lint_bytes(
    data: bytes, path: str, settings: Settings, rules: tuple[Rule, ...]
) -> list[Diagnostic]:
    """The findings of one file, by place."""
    language = "yaml" if Path(path).suffix in {".yaml", ".yml"} else "python"
    if len(data) > _MAX_BYTES:
        ours = language == "python" and Words(data[:_MAX_PIECES]).has_any(_ABOUT)
        return _unreadable(Source(""), path, "it is larger than 4 MB", 1, rules) if ours else []
    words = Words(data)
    if language == "python" and not words.has_any(_ABOUT):
        return []
    wanted = [r for r in rules if r.meta.language == language and r.wants(words)]
    if not wanted:
        return []
    silent = settings.ignored_in(path)
    wanted = [r for r in wanted if not r.code.startswith(silent)] if silent else wanted
    pieces = len(data) - len(data.translate(None, _PUNCTUATION))
    if pieces > _MAX_PIECES:
        return _unreadable(Source(""), path, "it is a table of data rather than code", 1, rules)
    try:
        source = Source.decode(data)
        found = _python(source, wanted) if language == "python" else _yaml(source, wanted)
    except UnreadableError as error:
        return _unreadable(Source(""), path, str(error), 1, rules)
    except SyntaxError as error:
        return _unreadable(source, path, f"{error.msg}", error.lineno or 1, rules)
    except yaml.YAMLError:
        return []  # templates and other dialects: not ours to judge
    except (RecursionError, MemoryError):
        return _unreadable(source, path, "is nested too deeply", 1, rules)
    except ValueError as error:  # a null byte, for one
        return _unreadable(source, path, str(error), 1, rules)
    kept = {
        (rule.code, match.span): _diagnostic(source, path, rule.meta, match)
        for rule, match in found
        if not is_ignored(source, rule.code, match)
    }
    return sorted(kept.values(), key=lambda d: (d.span.line, d.span.column, d.finding.code))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Trees hold no cycles, and the collector would walk every node of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parse(source: Source) -> ast.Module:
    """The tree of a Python text, without the warnings that are its author's business."""
    with warnings.catch_warnings(), _no_collector():
        warnings.simplefilter("ignore")
        return ast.parse(source.text)


def _python(source: Source, rules: list[Rule]) -> list[tuple[Rule, Match]]:
    with _no_collector():
        module = Model(source, parse(source))
    return [(r, match) for r in rules if r.check_python for match in r.check_python(module)]


def _yaml(source: Source, rules: list[Rule]) -> list[tuple[Rule, Match]]:
    file = YamlFile(source)
    return [(r, match) for r in rules if r.check_yaml for match in r.check_yaml(file)]


def _diagnostic(source: Source, path: str, meta: Meta, match: Match) -> Diagnostic:
    span = match.span
    snippet = source.line(span.line)
    end = span.end_column if span.end_line == span.line else len(snippet.encode())
    finding = Finding(
        code=meta.code,
        message=match.message,
        severity=meta.severity,
        path=path,
        line=span.line,
        column=source.character(span.line, span.column),
        subject=meta.name,
        cure=meta.cure,
        fix="\n".join(edit.text.strip() for edit in match.fix.edits) if match.fix else None,
    )
    return Diagnostic(finding, span, source.character(span.line, end), snippet, match.fix)


def _unreadable(
    source: Source, path: str, why: str, line: int, rules: tuple[Rule, ...]
) -> list[Diagnostic]:
    rule = next((r for r in rules if r.code == UNREADABLE), None)
    if rule is None:
        return []
    line = max(1, min(line, max(1, len(source.lines))))
    match = Match(Span(line, 0, line, 0), f"This file was not checked: {why}.")
    return [_diagnostic(source, path, rule.meta, match)]
