"""Check one file and return its findings, without those that a comment ignores.

Most files are skipped early, for speed. A file without any text that a rule needs is not decoded, and only
the rules whose texts it contains run.

``# halfguard: ignore[HG101]`` and ``# noqa: HG101`` ignore these codes on their line; ``# halfguard: ignore``
and ``# noqa`` ignore all of them.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from halfguard.catalogue import entry
from halfguard.lint.certainty import IS_RUN, condition_of
from halfguard.lint.match import Diagnostic, Fix, Match, Span
from halfguard.lint.project import UNKNOWN, Project
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import ByteSearch, Rule
from halfguard.lint.scaled import never_scales
from halfguard.lint.settings import Settings
from halfguard.lint.source import Source, UnreadableError
from halfguard.lint.unused import never_runs

UNREADABLE = "HG001"
# The number of punctuation marks is a measure of parsing time. The largest file of torch and transformers,
# 1.4 MB of tests, has 125,000. A file with far more is data, and would take seconds.
_PUNCTUATION = b",.[](){}+-*/=:@<>!%&|^~"
_MAX_PUNCTUATION = 200_000
_MAX_BYTES = 4_000_000
# A Python file without any of these has nothing to do with torch.
_LIBRARIES = (b"torch", b"lightning", b"transformers", b"accelerate")
_NOTEBOOK = re.compile(r"^(%%?|!)[a-z]", re.M)  # a command in a cell


def lint_bytes(
    data: bytes, path: str, settings: Settings, rules: tuple[Rule, ...], project: Project = UNKNOWN
) -> list[Diagnostic]:
    """Return the findings of one file, sorted by position."""
    if len(data) > _MAX_BYTES:
        relevant = ByteSearch(data[:200_000]).contains_any(_LIBRARIES)
        return (
            _unreadable(Source(""), path, "it is larger than 4 MB", 1, rules, project)
            if relevant
            else []
        )
    search = ByteSearch(data)
    if not search.contains_any(_LIBRARIES):
        return []
    active = [r for r in rules if r.could_match(search, project, path)]
    if not active or project.is_beside(path):
        return []
    ignored = settings.ignored_in(path)
    active = [r for r in active if not r.code.startswith(ignored)] if ignored else active
    if len(data) - len(data.translate(None, _PUNCTUATION)) > _MAX_PUNCTUATION:
        return _unreadable(
            Source(""), path, "it is a table of data rather than code", 1, rules, project
        )
    try:
        source = Source.decode(data)
        found = _run(source, active, path, project)
    except UnreadableError as error:
        return _unreadable(Source(""), path, str(error), 1, rules, project)
    except SyntaxError as error:
        return _not_parsed(source, path, error, rules, project)
    except (RecursionError, MemoryError):
        return _unreadable(source, path, "it is nested too deeply", 1, rules, project)
    except ValueError as error:  # for example a null byte
        return _unreadable(source, path, str(error), 1, rules, project)
    kept = {
        (rule.code, match.span): _diagnostic(source, path, rule.code, match)
        for rule, match in found
        if not is_ignored(source, rule.code, match)
    }
    diagnostics = sorted(kept.values(), key=lambda d: (d.span.line, d.span.column, d.code))
    return list(_merge_repeated(diagnostics, {rule.code for rule in active if rule.once}))


def _merge_repeated(found: list[Diagnostic], once: set[str]) -> Iterator[Diagnostic]:
    """Yield only the first finding of each of these codes, with the number and the fixes of all."""
    seen: set[str] = set()
    for diagnostic in found:
        if diagnostic.code in once:
            if diagnostic.code not in seen:
                seen.add(diagnostic.code)
                yield _merged([d for d in found if d.code == diagnostic.code])
        else:
            yield diagnostic


def _merged(found: list[Diagnostic]) -> Diagnostic:
    first, more = found[0], len(found) - 1
    fixes: list[Fix] = []
    for fix in (d.fix for d in found if d.fix):
        # One inside another is left to the next pass of --fix.
        if not fixes or fix.edits[0][0] >= fixes[-1].edits[-1][1]:
            fixes.append(fix)
    edits = tuple(edit for fix in fixes for edit in fix.edits)
    whole = Fix(fixes[0].kind, edits) if fixes else None
    message = f"{first.message} {more} more in this file." if more else first.message
    return replace(first, message=message, fix=whole)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn off the garbage collector: it would walk all nodes, and a file is released by hand."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parse(source: Source) -> ast.Module:
    """Parse Python source without showing the warnings that it causes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source.text)


def _run(
    source: Source, rules: list[Rule], path: str, project: Project
) -> list[tuple[Rule, Match]]:
    with _no_garbage_collection():
        file = PythonFile(source, parse(source), path, project)
        try:
            found = [
                (rule, replace(match, condition=condition_of(file, rule.code, match.span)))
                for rule in rules
                for match in rule.check(file)
                if not never_runs(file, match.span)
            ]
            is_scaled = all(r.code[2] not in "23" for r, _ in found) or not never_scales(file)
            return [(r, m) for r, m in found if r.code[2] not in "23" or is_scaled]
        finally:
            file.release()


def _diagnostic(source: Source, path: str, code: str, match: Match) -> Diagnostic:
    span, failure = match.span, entry(code)
    snippet = source.line(span.line)
    end = span.end_column if span.end_line == span.line else len(snippet.encode())
    return Diagnostic(
        code=code,
        message=match.message,
        severity="note" if match.condition else failure.severity,
        path=path,
        column=source.character_column(span.line, span.column),
        end_column=source.character_column(span.line, end),
        subject=failure.name,
        cure=failure.cure,
        span=span,
        snippet=snippet,
        fix=match.fix,
        condition=match.condition,
    )


def _not_parsed(
    source: Source, path: str, error: SyntaxError, rules: tuple[Rule, ...], project: Project
) -> list[Diagnostic]:
    """Report a file that is not Python, unless it is a template, a cell of a notebook, or for a newer Python.

    Since 3.12 an f-string may hold its own quotes.
    """
    if "{{" in path or "{%" in source.text or _NOTEBOOK.search(source.text):
        return []
    if sys.version_info < (3, 12) and error.msg.startswith("f-string"):
        return []
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    reason = f"Python {version} cannot read it: {error.msg}"
    return _unreadable(source, path, reason, error.lineno or 1, rules, project)


def _unreadable(
    source: Source, path: str, reason: str, line: int, rules: tuple[Rule, ...], project: Project
) -> list[Diagnostic]:
    if all(rule.code != UNREADABLE for rule in rules):
        return []
    line = max(1, min(line, max(1, len(source.lines))))
    condition = "" if project.lone or project.is_named(path) else IS_RUN
    match = Match(Span(line, 0, line, 0), f"This file was not checked: {reason}.", None, condition)
    return [_diagnostic(source, path, UNREADABLE, match)]


_COMMENT = re.compile(r"#.*?\bhalfguard:\s*ignore(?:\[([A-Za-z0-9,\s]*)\])?", re.IGNORECASE)
# As in flake8 and ruff: a colon begins a list of codes, and anything else after the word is a comment.
_NOQA = re.compile(r"#\s*noqa(?::\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,\s]+")
_MAX_LINES = 50


def is_ignored(source: Source, code: str, match: Match) -> bool:
    """Return whether a comment on one of the lines of a match ignores it."""
    last = min(match.span.end_line, match.span.line + _MAX_LINES)
    return any(_ignores(source.line(n), code) for n in range(match.span.line, last + 1))


def _ignores(line: str, code: str) -> bool:
    if "#" not in line:
        return False
    for pattern, word in ((_COMMENT, "halfguard"), (_NOQA, "noqa")):
        if word not in line.lower():
            continue
        for found in pattern.finditer(line):
            listed = found.group(1)
            if listed is None or code in _SEPARATOR.split(listed.strip().upper()):
                return True
    return False
