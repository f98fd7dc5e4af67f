"""Exceptions of the user's code: one sentence with the user's own line, and whether memory ran out."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from pathlib import Path

import torch

_OURS = str(Path(__file__).resolve().parents[1])
_LIBRARIES = (
    _OURS,
    sysconfig.get_paths()["purelib"],
    sysconfig.get_paths()["stdlib"],
    "<frozen",
)
_CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory")


def describe_error(error: BaseException) -> str:
    """Return ``"ValueError: not a shape (in build, at job.py:12: layer(x))"``."""
    return f"{type(error).__name__}: {error}{user_frame(error)}"


def user_frame(error: BaseException) -> str:
    """Return ``" (in build, at job.py:12: layer(x))"``, or "" if no line of the user's is on the stack."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (at {error.filename}:{error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        passing_on = frame.name in ("__torch_function__", "__torch_dispatch__")
        if not passing_on and not frame.filename.startswith(_LIBRARIES):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            code = f": {line}" if line else ""
            path = Path(frame.filename)
            inside = path.is_relative_to(Path.cwd())
            place = path.relative_to(Path.cwd()) if inside else frame.filename
            return f" (in {frame.name}, at {place}:{frame.lineno}{code})"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the host ran out of memory; on a CPU that is a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in _CPU_OUT_OF_MEMORY
    )
