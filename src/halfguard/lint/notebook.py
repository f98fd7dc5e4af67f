"""Read the code of a Jupyter notebook as one Python source, and find the cell of each line.

Lines for IPython (``%magic``, ``!command``, ``name?``) are replaced by ``pass``, so that line numbers stay.
Cells are joined in the order of the file, which may not be the order in which somebody ran them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, replace

from halfguard.lint.match import Diagnostic, Span

_MAGIC = re.compile(r"^(\s*)(?:[%!].*|[\w.]+\?{1,2}|\?{1,2}[\w.]+)\s*$")
_ASSIGNED = re.compile(r"^(\s*)\w+\s*=\s*[%!].*$")


@dataclass(frozen=True)
class Notebook:
    """The code of all cells, the first line of each, and its number among all cells from 1."""

    text: str
    starts: tuple[int, ...]
    numbers: tuple[int, ...]

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return a finding with the line in its cell. Its fix is left out: edits are for Python files."""
        at = bisect_right(self.starts, diagnostic.line) - 1
        first, span = self.starts[at] - 1, diagnostic.span
        moved = Span(span.line - first, span.column, span.end_line - first, span.end_column)
        return replace(diagnostic, span=moved, cell=self.numbers[at], fix=None)


def read_notebook(data: bytes) -> Notebook | None:
    """Return the code of a notebook; None if it is not one, or is not in Python."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("cells"), list):
        return None
    metadata = body.get("metadata")
    language = metadata.get("language_info", {}) if isinstance(metadata, dict) else {}
    if isinstance(language, dict) and language.get("name", "python") != "python":
        return None
    lines: list[str] = []
    starts: list[int] = []
    numbers: list[int] = []
    for number, cell in enumerate(body["cells"], 1):
        code = _code(cell)
        if code is not None:
            starts.append(len(lines) + 1)
            numbers.append(number)
            lines += code
    return Notebook("\n".join(lines) + "\n", tuple(starts), tuple(numbers)) if starts else None


def _code(cell: object) -> list[str] | None:
    """Return the Python lines of a code cell; None for other cells and for cells of another language."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    source = cell.get("source", "")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    lines = text.split("\n")
    if lines[0].startswith("%%") and not lines[0].startswith(("%%time", "%%capture")):
        return None
    return [_python(line) for line in lines]


def _python(line: str) -> str:
    found = _MAGIC.match(line) or _ASSIGNED.match(line)
    return f"{found.group(1)}pass" if found else line
