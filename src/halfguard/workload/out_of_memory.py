"""Telling "there was no room" from every other error."""

from __future__ import annotations

import torch

_CPU_WORDS = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator or the host had no room; a CPU says so with a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_WORDS)
