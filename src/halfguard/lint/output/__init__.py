"""Output formats: text, JSON, SARIF and GitHub annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from halfguard.lint.output.github import to_github
from halfguard.lint.output.sarif import to_sarif
from halfguard.lint.output.text_and_json import to_json, to_text
from halfguard.lint.run import FileResult

Renderer = Callable[[Sequence[FileResult]], str]

FORMATS: Mapping[str, Renderer] = MappingProxyType(
    {"text": to_text, "json": to_json, "sarif": to_sarif, "github": to_github}
)

__all__ = ["FORMATS", "Renderer"]
