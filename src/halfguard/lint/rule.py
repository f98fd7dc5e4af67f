"""What a rule is, and what it says: a match at a place, with an optional fix.

One idea: everything that leaves a rule is plain data (positions and text), so that it crosses process
borders and the same match serves the terminal, an editor, SARIF and ``--fix``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from halfguard.lint.model import Model
    from halfguard.lint.yamlfile import YamlFile
    from halfguard.records import Severity

FixKind = Literal["safe", "unsafe"]
Language = Literal["python", "yaml"]


@dataclass(frozen=True)
class Span:
    """A range of source: lines count from 1, columns are UTF-8 bytes from 0, as in ``ast``."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def of(cls, node: ast.expr | ast.stmt | ast.excepthandler | ast.keyword) -> Span:
        """The range of a syntax node."""
        return cls(
            node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    @classmethod
    def before(cls, node: ast.expr | ast.stmt) -> Span:
        """The empty range at which a node begins."""
        return cls(node.lineno, node.col_offset, node.lineno, node.col_offset)


@dataclass(frozen=True)
class Edit:
    """Replace a range by a text."""

    span: Span
    text: str


@dataclass(frozen=True)
class Fix:
    """Edits that belong together, and the modules that their text needs imported."""

    kind: FixKind
    edits: tuple[Edit, ...]
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class Match:
    """One place at which a rule applies."""

    span: Span
    message: str
    fix: Fix | None = None


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


PythonCheck = Callable[["Model"], Iterator[Match]]
YamlCheck = Callable[["YamlFile"], Iterator[Match]]


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


def match_at(node: ast.expr | ast.stmt, message: str, fix: Fix | None = None) -> Match:
    """A match that covers a syntax node."""
    return Match(Span.of(node), message, fix)
