"""A lint rule: the code of a failure, when it is run, and the check that finds its matches.

A rule is a function with the decorator ``rule``, in a module of ``rules``; no list is kept. The catalogue has
the name of the failure, its severity and its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from halfguard.lint.match import Match
from halfguard.lint.project import Project
from halfguard.lint.python_file import PythonFile

Check = Callable[[PythonFile], Iterator[Match]]
# Texts of a file that shows that something in it is float16.
SHOWS_HALF = (b".half(", b"torch.float16", b"torch.half", b"autocast")


class ByteSearch:
    """Searches the bytes of a file; rules share many texts, and each is searched once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._results: dict[bytes, bool] = {}

    def matches(self, pattern: bytes) -> bool:
        if pattern not in self._results:
            # re keeps the compiled patterns; they are not compiled at start-up.
            self._results[pattern] = re.search(pattern, self._data) is not None
        return self._results[pattern]

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
    """A rule with its check, and the texts that a file must contain, so that most files are never parsed."""

    code: str
    check: Check
    contains: tuple[bytes, ...]
    also_contains: tuple[bytes, ...] = ()  # one of these as well
    pattern: bytes = b""  # must match as well; it is searched last, because it is slower
    once: bool = False  # reported once per file, with the number and the fixes of all matches
    in_half: bool = False  # only where values may be float16

    def could_match(self, search: ByteSearch, project: Project, path: str) -> bool:
        """Return whether a file contains the texts that this rule needs."""
        return (
            search.contains_any(self.contains)
            and (not self.also_contains or search.contains_any(self.also_contains))
            and (
                not self.in_half
                or search.contains_any(SHOWS_HALF)
                or project.may_call_in_half(path)
            )
            and (not self.pattern or search.matches(self.pattern))
        )


RULES: list[Rule] = []  # two may have one code


def rule(
    code: str, *contains: str, also: tuple[str, ...] = (), pattern: str = "", once: bool = False,
    in_half: bool = False,
) -> Callable[[Check], Check]:  # fmt: skip
    """Declare a check as the rule of a code; a file must contain one of the texts, and one of ``also``."""

    def declare(check: Check) -> Check:
        texts, others = (tuple(text.encode() for text in part) for part in (contains, also))
        RULES.append(Rule(code, check, texts, others, pattern.encode(), once, in_half))
        return check

    return declare
