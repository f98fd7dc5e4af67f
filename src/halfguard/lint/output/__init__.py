"""How findings are written: for people, for machines, for SARIF viewers, for GitHub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from halfguard.lint.output.github import github
from halfguard.lint.output.plain import as_json, text
from halfguard.lint.output.sarif import sarif
from halfguard.lint.run import FileResult

Renderer = Callable[[Sequence[FileResult]], str]

FORMATS: Mapping[str, Renderer] = MappingProxyType(
    {"text": text, "json": as_json, "sarif": sarif, "github": github}
)

__all__ = ["FORMATS", "Renderer"]
