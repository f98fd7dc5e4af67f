"""The user's line: the innermost frame that is not of torch, halfguard, or a framework that runs the loop."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import torch

from halfguard.step.installed import is_installed

_TORCH = str(Path(torch.__file__).parent)
_HALFGUARD = str(Path(__file__).parents[1])
_STDLIB = sysconfig.get_paths()["stdlib"]
_DYNAMO = str(Path(_TORCH, "_dynamo", "eval_frame.py"))
_CHECKPOINT = str(Path(_TORCH, "utils", "checkpoint.py"))
# Methods of modes and tensor subclasses, anybody's, that pass on every call: the line is that of the caller.
_PASSING_ON = ("__torch_function__", "__torch_dispatch__")
# Frameworks that run a loop, or wrap a model: their lines call the user's, or a layer that the user named.
_LOOPS = tuple(
    f"{sysconfig.get_paths()['purelib']}{os.sep}{name}{os.sep}"
    for name in ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")
)

# The autograd engine runs below this call; frames above it only started the backward pass. Without the
# private function, the public ones that call it stand for it: a sensor between them then finds no frame.
_PRIVATE = getattr(torch.autograd.graph, "_engine_run_backward", None)
_STARTING_BACKWARD = (
    (torch.autograd.backward, torch.autograd.grad) if _PRIVATE is None else (_PRIVATE,)
)
_ENGINE = tuple(function.__code__ for function in _STARTING_BACKWARD)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of code; was it called from a compiled or a recomputed region?"""

    file: str = ""
    line: int = 0
    compiled: bool = False
    recomputed: bool = False

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip() if self.file else ""

    @property
    def where(self) -> str:
        """The place as the end of a sentence; empty if it is not known."""
        return f" at {self.file}:{self.line}" if self.file else ""


def user_frame(outermost: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the user inside ``outermost`` or the engine, or None."""
    frame: FrameType | None = sys._getframe(1)
    ends = (outermost, *_ENGINE)
    while frame is not None and frame.f_code not in ends:
        if not _is_machinery(frame.f_code):
            return frame
        frame = frame.f_back
    return None


def locate_frame(frame: FrameType, outermost: CodeType | None = None) -> SourceLine:
    """Return the line of a frame, and whether a compiled or checkpointed region called it."""
    compiled = recomputed = False
    caller, ends = frame.f_back, (outermost, *_ENGINE)
    while caller is not None and caller.f_code not in ends:
        code, caller = caller.f_code, caller.f_back
        # The same file also runs regions that torch never compiles.
        compiled |= code.co_filename == _DYNAMO and "DisableContext" not in code.co_qualname
        recomputed |= code.co_filename == _CHECKPOINT
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, compiled, recomputed)


def find_user_name(frame: FrameType | None, wanted: Callable[[object], bool]) -> str:
    """Return the user's name of a value: a local variable of the frame, or an entry of one."""
    for name, value in frame.f_locals.items() if frame is not None else ():
        if wanted(value):
            return name
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))  # noqa: PLW2901
        for key, entry in value.items() if isinstance(value, Mapping) else ():
            if wanted(entry):
                return f"{name}[{key!r}]"
    return ""


def _is_machinery(code: CodeType) -> bool:
    file = code.co_filename
    if code.co_name in _PASSING_ON or file.startswith((_TORCH, _HALFGUARD, "<frozen", *_LOOPS)):
        return True
    return file.startswith(_STDLIB) and not is_installed(file)
