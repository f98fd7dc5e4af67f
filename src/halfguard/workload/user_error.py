"""What an exception of the user's own code is told as: its sentence, and the line on which it arose."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = (
    _OURS,
    sysconfig.get_paths()["purelib"],
    sysconfig.get_paths()["stdlib"],
    "<frozen",
)


def told(error: BaseException) -> str:
    """``"ValueError: not a shape (in build, at job.py:12: layer(x))"``."""
    return f"{type(error).__name__}: {error}{user_frame(error)}"


def user_frame(error: BaseException) -> str:
    """``" (in build, at job.py:12: layer(x))"``; empty if no line of the user's is on the stack."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (at {error.filename}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_LIBRARIES):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            code = f": {line}" if line else ""
            return f" (in {frame.name}, at {_short(frame.filename)}:{frame.lineno}{code})"
    return ""


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
