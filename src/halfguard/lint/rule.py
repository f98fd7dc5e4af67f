"""What a rule is: its facts, its page, and the check that finds its matches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from halfguard.lint.match import FixKind, Match
from halfguard.lint.model import Model
from halfguard.lint.yamlfile import YamlFile
from halfguard.records import Severity

Language = Literal["python", "yaml"]


@dataclass(frozen=True)
class Meta:
    """The constant facts of a rule; the prose is the docstring of its file."""

    code: str
    name: str
    cure: str
    # A file that holds none of these words is not looked at: most of a large tree is never parsed.
    words: tuple[str, ...]
    # ... nor one that holds none of these, where a rule needs two things to meet.
    also: tuple[str, ...] = ()
    severity: Severity = "warning"
    fix: FixKind | None = None
    preview: bool = False
    language: Language = "python"


class Words:
    """The bytes of a file, asked for words; rules share many, and each is looked for once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._known: dict[bytes, bool] = {}

    def has_any(self, needles: tuple[bytes, ...]) -> bool:
        """Whether the file holds any of these."""
        return any(self._has(needle) for needle in needles)

    def _has(self, needle: bytes) -> bool:
        if needle not in self._known:
            self._known[needle] = needle in self._data
        return self._known[needle]


PythonCheck = Callable[[Model], Iterator[Match]]
YamlCheck = Callable[[YamlFile], Iterator[Match]]


@dataclass(frozen=True)
class Rule:
    """A rule as the engine runs it."""

    meta: Meta
    page: str
    check_python: PythonCheck | None = None
    check_yaml: YamlCheck | None = None
    needles: tuple[bytes, ...] = ()
    also: tuple[bytes, ...] = ()

    @property
    def code(self) -> str:
        """The stable code, such as HG101."""
        return self.meta.code

    def wants(self, words: Words) -> bool:
        """Whether a file with these words could hold a match."""
        return words.has_any(self.needles) and (not self.also or words.has_any(self.also))
