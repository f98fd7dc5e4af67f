"""A YAML file as its mappings, with the place of every key.

One idea: the file is composed, never constructed. Nodes carry lines and columns, and no tag in a config
can make anything happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import yaml

from halfguard.lint.match import Match, Span
from halfguard.lint.source import Source

_MAX_NODES = 200_000  # aliases can make a small file describe a very large one


@dataclass(frozen=True)
class Entry:
    """One key of a mapping with its value; ``value`` is None for lists and mappings."""

    key: str
    value: str | None
    is_null: bool
    span: Span

    @property
    def number(self) -> float | None:
        """The value as a number, where it is one."""
        try:
            return float(self.value or "")
        except ValueError:
            return None

    @property
    def truth(self) -> bool | None:
        """The value as a boolean, where it is one."""
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return words.get((self.value or "").lower())

    def match(self, message: str) -> Match:
        """A match at this entry."""
        return Match(self.span, message)


Mapping = dict[str, Entry]


class YamlFile:
    """Every mapping of a YAML file, at any depth, in all of its documents."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @cached_property
    def mappings(self) -> list[Mapping]:
        """The mappings, outermost first."""
        return list(self._mappings())

    def _mappings(self) -> Iterator[Mapping]:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        stack = [node for node in yaml.compose_all(self.source.text, Loader=loader) if node][::-1]
        seen: set[int] = set()
        while stack and len(seen) < _MAX_NODES:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                yield (
                    {entry.key: entry for entry in map(self._entry, *zip(*node.value, strict=True))}
                    if node.value
                    else {}
                )
                stack.extend(value for _, value in reversed(node.value))
            elif isinstance(node, yaml.SequenceNode):
                stack.extend(reversed(node.value))

    def _entry(self, name: yaml.Node, value: yaml.Node) -> Entry:
        scalar = isinstance(value, yaml.ScalarNode)
        begin = self._byte(name.start_mark)
        end = self._byte(value.end_mark if scalar else name.end_mark)
        is_null = scalar and value.tag == "tag:yaml.org,2002:null"
        return Entry(
            key=str(name.value) if isinstance(name, yaml.ScalarNode) else "",
            value=str(value.value) if scalar and not is_null else None,
            is_null=is_null,
            span=Span(*begin, *end),
        )

    def _byte(self, mark: yaml.Mark) -> tuple[int, int]:
        """Line from 1 and UTF-8 column from 0 of a mark, which counts characters."""
        text = self.source.line(mark.line + 1)
        return mark.line + 1, len(text[: mark.column].encode())
