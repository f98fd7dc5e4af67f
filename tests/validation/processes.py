"""Whether processes have really ended."""

from __future__ import annotations

import os
import time
from pathlib import Path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: list[int]) -> bool:
    """Whether the processes have ended; what is killed may take a moment to."""
    give_up = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < give_up:
        os.sched_yield()
    return not any(map(alive, pids))
