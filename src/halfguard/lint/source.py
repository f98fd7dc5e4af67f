"""The text of a file, decoded as Python decodes it, and cut at the positions that ``ast`` gives.

``ast`` counts columns in UTF-8 bytes and ends lines only at ``\\n``, ``\\r`` and ``\\r\\n``, so this module
works on the bytes of lines that are split the same way. ``str.splitlines`` also splits at form feeds, which
would shift every position after one.
"""

from __future__ import annotations

import io
import re
import tokenize
from functools import cached_property

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")


class UnreadableError(Exception):
    """The file cannot be decoded; the message gives the reason."""


class Source:
    """The text of one file, with its lines as UTF-8 bytes."""

    def __init__(self, text: str, *, encoding: str = "utf-8") -> None:
        self.text = text
        self.encoding = encoding

    @classmethod
    def decode(cls, data: bytes) -> Source:
        """Decode a file by its byte-order mark or coding comment, as the interpreter does."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return cls(data.decode(encoding), encoding=encoding)
        except (SyntaxError, UnicodeError, LookupError) as error:
            raise UnreadableError(f"it cannot be decoded: {error}") from error

    @cached_property
    def lines(self) -> list[bytes]:
        """Lines as UTF-8 bytes, each with its line ending."""
        # A lone surrogate cannot come from a file, but a caller may pass one.
        found = _LINE.findall(self.text.encode("utf-8", "surrogatepass"))
        return found[:-1] if len(found) > 1 and not found[-1] else found

    def line(self, number: int) -> str:
        """Return a line without its line ending; empty if there is no such line."""
        if not 1 <= number <= len(self.lines):
            return ""
        return self.lines[number - 1].decode("utf-8", "replace").rstrip("\r\n")

    def character_column(self, number: int, column: int) -> int:
        """Convert a byte column from 0 to a character column from 1, as editors count."""
        if not 1 <= number <= len(self.lines):
            return 1
        return len(self.lines[number - 1][:column].decode("utf-8", "replace")) + 1
