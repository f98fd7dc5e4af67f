"""Lint rules: every file ``rules/hgNNN_*.py`` is one, and no list is kept.

What a failure is called, how grave it is, and its page are in the catalogue, under the code of the rule.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from halfguard import catalogue
from halfguard.errors import UsageError
from halfguard.lint import rules as rules_package
from halfguard.lint.match import Match, Meta
from halfguard.lint.project import Project
from halfguard.lint.python_file import PythonFile


class ByteSearch:
    """Searches the bytes of a file; rules share many texts, and each is searched once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._results: dict[bytes, bool] = {}
        self._matches: dict[bytes, bool] = {}

    def matches(self, pattern: bytes) -> bool:
        if pattern not in self._matches:
            # re keeps the compiled patterns; they are not compiled at start-up.
            self._matches[pattern] = re.search(pattern, self._data) is not None
        return self._matches[pattern]

    def contains_any(self, texts: tuple[bytes, ...]) -> bool:
        results, data = self._results, self._data
        for text in texts:
            found = results.get(text)
            if found is None:
                found = results[text] = text in data
            if found:
                return True
        return False


@dataclass(frozen=True)
class Rule:
    """A rule with its check, and the texts that a file must contain."""

    code: str
    meta: Meta
    check: Callable[[PythonFile], Iterator[Match]]
    contains: tuple[bytes, ...] = ()
    also_contains: tuple[bytes, ...] = ()
    pattern: bytes = b""

    def applies_to(self, project: Project) -> bool:
        return not self.meta.needs_half or project.may_train_in_half

    def could_match(self, search: ByteSearch) -> bool:
        """Return whether a file contains the texts that this rule needs."""
        return (
            search.contains_any(self.contains)
            and (not self.also_contains or search.contains_any(self.also_contains))
            and (not self.pattern or search.matches(self.pattern))
        )


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code."""
    modules = pkgutil.iter_modules(rules_package.__path__)
    return tuple(_load(name) for name in sorted(m.name for m in modules if m.name[:2] == "hg"))


def _load(name: str) -> Rule:
    module = importlib.import_module(f"{rules_package.__name__}.{name}")
    meta: Meta = module.META
    contains, also = (tuple(t.encode() for t in x) for x in (meta.contains, meta.also_contains))
    return Rule(name[:5].upper(), meta, module.check, contains, also, meta.pattern.encode())


def select_rules(chosen: tuple[str, ...], ignored: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules whose code begins with a chosen prefix and with no ignored one.

    If both match, the longer one wins: ``select=["HG1"], ignore=["HG104"]`` is HG1 without HG104.
    """
    for prefix in (*chosen, *ignored):
        known = {rule.code for rule in all_rules()}
        if prefix in ignored:
            known |= {*catalogue.removed_codes(), *catalogue.old_codes()}
            known |= {one.code for one in catalogue.all_entries()}
        if prefix != "ALL" and not any(code.startswith(prefix) for code in known):
            seen = catalogue.find(prefix).seen
            raise UsageError(f"Lint has no rule {prefix}: it is reported by {', '.join(seen)}.")
    return tuple(rule for rule in all_rules() if _is_on(rule.code, chosen, ignored))


def _is_on(code: str, chosen: tuple[str, ...], ignored: tuple[str, ...]) -> bool:
    length = _longest_prefix(code, chosen) if chosen else 0
    return length >= 0 and length > _longest_prefix(code, ignored)


def _longest_prefix(code: str, prefixes: tuple[str, ...]) -> int:
    """Return the length of the longest prefix of a code, or -1 if there is none."""
    lengths = [0 if p == "ALL" else len(p) for p in prefixes if p == "ALL" or code.startswith(p)]
    return max(lengths, default=-1)
