"""A lint rule: what it declares, its page, and the check that finds its matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


Check = Callable[[PythonFile], Iterator[Match]]


@dataclass(frozen=True)
class Rule:
    """A rule with its check."""

    meta: Meta
    page: str
    check: Check
    contains: tuple[bytes, ...] = ()
    also_contains: tuple[bytes, ...] = ()
    pattern: bytes = b""

    @property
    def code(self) -> str:
        return self.meta.code

    def applies_to(self, project: Project) -> bool:
        return not self.meta.needs_half or project.may_train_in_half

    def could_match(self, search: ByteSearch) -> bool:
        """Return whether a file contains the texts that this rule needs."""
        return (
            search.contains_any(self.contains)
            and (not self.also_contains or search.contains_any(self.also_contains))
            and (not self.pattern or search.matches(self.pattern))
        )
