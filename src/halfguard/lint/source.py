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

from halfguard.lint.match import Edit, Span

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n|$)")


class UnreadableError(Exception):
    """The file cannot be decoded; the message gives the reason."""


class Source:
    """The text of one file, with its lines as UTF-8 bytes."""

    def __init__(self, text: str, *, encoding: str = "utf-8", bom: bool = False) -> None:
        self.text = text
        self.encoding = encoding
        self.bom = bom

    @classmethod
    def decode(cls, data: bytes) -> Source:
        """Decode a file by its byte-order mark or coding comment, as the interpreter does."""
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(encoding)
        except (SyntaxError, UnicodeError, LookupError) as error:
            raise UnreadableError(f"it cannot be decoded: {error}") from error
        bom = encoding == "utf-8-sig"
        return cls(text, encoding="utf-8" if bom else encoding, bom=bom)

    def encode(self, text: str) -> bytes:
        """Encode a changed text in the encoding of the original."""
        return text.encode("utf-8-sig" if self.bom else self.encoding)

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

    def byte_offset(self, line: int, column: int) -> int:
        """Return the byte offset of a position in the UTF-8 text."""
        return self._starts[min(line - 1, len(self._starts) - 1)] + column

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    def text_at(self, span: Span) -> str:
        """Return the text of a range."""
        lines = self.lines[span.line - 1 : span.end_line]
        if len(lines) != span.end_line - span.line + 1:
            return ""
        lines[-1] = lines[-1][: span.end_column]  # first, because both may be the same line
        lines[0] = lines[0][span.column :]
        return b"".join(lines).decode("utf-8", "replace")

    def indent(self, line: int) -> str:
        """Return the white space at the beginning of a line."""
        text = self.line(line)
        return text[: len(text) - len(text.lstrip())]

    @property
    def newline(self) -> str:
        """Line ending of the first line."""
        first = self.lines[0] if self.lines else b""
        return next((end for end in ("\r\n", "\r") if first.endswith(end.encode())), "\n")

    def apply_edits(self, edits: list[Edit]) -> str:
        """Return the text after edits, which must not overlap."""
        data = self.text.encode("utf-8", "surrogatepass")
        parts, position = [], 0
        for edit in sorted(edits, key=lambda e: (e.span.line, e.span.column)):
            begin = self.byte_offset(edit.span.line, edit.span.column)
            parts += [data[position:begin], edit.text.encode()]
            position = self.byte_offset(edit.span.end_line, edit.span.end_column)
        return b"".join((*parts, data[position:])).decode("utf-8", "surrogatepass")
