"""Apply a unified diff to files of a folder: one that was made from the same files."""

from __future__ import annotations

import re
from pathlib import Path

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


def apply_patch(patch: str, folder: Path) -> bool:
    """Apply a patch with paths below the folder; return False, and change nothing, if it does not fit."""
    changed = _after(patch, folder)
    for path, text in changed.items():
        path.write_text(text, "utf-8")
    return bool(changed)


def fits(patch: str, folder: Path) -> bool:
    """Return whether a patch can be applied to the files of a folder."""
    return bool(_after(patch, folder))


def _after(patch: str, folder: Path) -> dict[Path, str]:
    """Return the files of a folder after a patch; none if it does not fit."""
    changed: dict[Path, str] = {}
    for part in re.split(r"^(?=--- )", patch, flags=re.MULTILINE):
        if not part.strip():
            continue
        old, new, *rest = _lines(part)
        path = folder / new.removeprefix("+++ ").removeprefix("b/").split("\t")[0]
        if not old.startswith("--- ") or not path.resolve().is_relative_to(folder.resolve()):
            return {}
        try:
            text = _patched(_lines(path.read_text("utf-8")), rest)
        except (OSError, UnicodeDecodeError):
            return {}
        if text is None:
            return {}
        changed[path] = text
    return changed


def _lines(text: str) -> list[str]:
    """Split where Python's own parser does; str.splitlines knows more kinds of line breaks."""
    return text.removesuffix("\n").split("\n")


def _patched(lines: list[str], patch: list[str]) -> str | None:
    """Return the lines after the hunks of one file, or None if they do not fit."""
    out, at = list[str](), 0
    for line in patch:
        hunk = _HUNK.match(line)
        if hunk:
            # A hunk without old lines says after which line it belongs.
            start = int(hunk[1]) - (0 if hunk[2] == "0" else 1)
            out += lines[at:start]
            at = start
        elif line.startswith("+"):
            out.append(line[1:])
        elif at < len(lines) and lines[at] == line[1:]:
            out += [] if line.startswith("-") else [lines[at]]
            at += 1
        else:
            return None
    return "\n".join([*out, *lines[at:]]) + "\n"
