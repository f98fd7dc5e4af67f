"""A lint rule: its metadata, its page, and the check that finds its matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from halfguard.lint.diagnostic import Severity
from halfguard.lint.match import FixKind, Match
from halfguard.lint.project import Project
from halfguard.lint.python_file import PythonFile
from halfguard.lint.yaml_file import YamlFile

Language = Literal["python", "yaml"]


@dataclass(frozen=True)
class Meta:
    """Metadata of a rule; the text of its page is the docstring of its file."""

    code: str
    name: str
    cure: str
    # A file must contain one of these texts to be checked, so most files of a large tree are never parsed.
    contains: tuple[str, ...]
    # If this is given, it must contain one of these as well.
    also_contains: tuple[str, ...] = ()
    # A regular expression that must match as well; it is searched last, because it is slower.
    pattern: str = ""
    # All of these must be in one top-level function or class, or at the module level.
    in_one_definition: bool = False
    severity: Severity = "warning"
    fix: FixKind | None = None
    preview: bool = False
    # The rule is about the range of float16, and is not run if the project never uses float16.
    needs_half: bool = False
    language: Language = "python"


# A line of module-level code; closing brackets, comments and the ends of strings do not begin one.
_TOP_LEVEL = re.compile(rb"\n(?=[^\s)\]}#\"'])")
_DEFINITION = re.compile(rb"(?:class|(?:async )?def) \w+\s*[(:\[]")


class ByteSearch:
    """Searches the bytes of a file; rules share many texts, and each is searched once.

    ``top`` searches code that counts as part of this one: module-level code beside a function.
    """

    def __init__(self, data: bytes, top: ByteSearch | None = None) -> None:
        self._data = data
        self._top = top
        self._results: dict[bytes, bool] = {}
        self._matches: dict[bytes, bool] = {}

    def matches(self, pattern: bytes) -> bool:
        if pattern not in self._matches:
            # re keeps the compiled patterns; they are not compiled at start-up.
            self._matches[pattern] = re.search(pattern, self._data) is not None
        return self._matches[pattern] or (self._top is not None and self._top.matches(pattern))

    def contains_any(self, texts: tuple[bytes, ...]) -> bool:
        results, data = self._results, self._data
        for text in texts:
            found = results.get(text)
            if found is None:
                found = results[text] = text in data
            if found:
                return True
        return self._top is not None and self._top.contains_any(texts)

    @cached_property
    def definitions(self) -> list[ByteSearch]:
        """Each top-level function and class, together with all module-level code."""
        parts: list[bytes] = []
        found: list[bytes] = []
        for part in _TOP_LEVEL.split(self._data):
            (found if _DEFINITION.match(part) else parts).append(part)
        top = ByteSearch(b"\n".join(parts))
        return [ByteSearch(part, top) for part in found] or [top]


PythonCheck = Callable[[PythonFile], Iterator[Match]]
YamlCheck = Callable[[YamlFile], Iterator[Match]]


@dataclass(frozen=True)
class Rule:
    """A rule with its check."""

    meta: Meta
    page: str
    check_python: PythonCheck | None = None
    check_yaml: YamlCheck | None = None
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
        if not self._finds_texts(search):
            return False
        if not self.meta.in_one_definition:
            return not self.pattern or search.matches(self.pattern)
        return any(
            self._finds_texts(part) and (not self.pattern or part.matches(self.pattern))
            for part in search.definitions
        )

    def _finds_texts(self, search: ByteSearch) -> bool:
        return search.contains_any(self.contains) and (
            not self.also_contains or search.contains_any(self.also_contains)
        )
