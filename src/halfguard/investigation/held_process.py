"""A copy of the process, held at the beginning of the bad step, from which trials of it are forked.

Running the script again up to the step would cost its whole time for every trial. A fork costs nothing, but
works only if the process has no other threads, no worker processes and no accelerator. Threads of OpenMP are
lost in a fork, so a copy computes on one thread. Open files are shared with the original, so their positions
are put back before each trial.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch

from halfguard.dist.collectives import world_size
from halfguard.investigation.passes import TrialPlan, TrialResult

_SECONDS = 120.0  # for one trial
_HARMLESS_THREADS = {"TMonitor"}  # tqdm's


@dataclass
class HeldProcess:
    """The held copy, as its original sees it; in a fork of the copy, ``trial`` is what to try."""

    _requests: int  # file descriptors
    _results: int
    trial: TrialPlan | None = None

    @classmethod
    def is_possible(cls) -> bool:
        """Return whether this process can be copied."""
        threads = {type(t).__name__ for t in threading.enumerate()} - _HARMLESS_THREADS
        alone = threads <= {"_MainThread"} and not multiprocessing.active_children()
        accelerated = torch.accelerator.is_available()
        return sys.platform == "linux" and alone and not accelerated and world_size() == 1

    @classmethod
    def hold(cls) -> HeldProcess:
        """Make a copy and return; return again, with a trial, in each fork of the copy."""
        (reads_request, requests), (results, writes_result) = os.pipe(), os.pipe()
        if os.fork():
            os.close(reads_request)
            os.close(writes_result)
            return cls(requests, results)
        os.close(requests)
        os.close(results)
        positions = _file_positions()
        while line := _read_line(reads_request):
            pid = os.fork()
            if not pid:
                torch.set_num_threads(1)
                for descriptor, position in positions.items():
                    with suppress(OSError):
                        os.lseek(descriptor, position, os.SEEK_SET)
                return cls(reads_request, writes_result, TrialPlan.model_validate_json(line))
            if not _ended_well(pid):
                os.write(writes_result, b"\n")
        os._exit(0)

    def run(self, trial: TrialPlan) -> TrialResult | None:
        """Run one trial in a fork; None if it did not end by itself."""
        try:
            os.write(self._requests, f"{trial.model_dump_json()}\n".encode())
            line = _read_line(self._results)
        except OSError:
            return None
        return TrialResult.model_validate_json(line) if line.strip() else None

    def send(self, result: TrialResult) -> NoReturn:
        """Answer from a fork, and end it."""
        # JSON has no line break outside of strings, and none in them.
        os.write(self._results, f"{result.model_dump_json()}\n".encode())
        os._exit(0)


def _ended_well(pid: int) -> bool:
    """Wait for a fork that answers by itself; end it if it takes too long."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _read_line(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 65536):
        parts.append(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)


def _file_positions() -> dict[int, int]:
    """Return the positions of open regular files."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError, ValueError):
            if entry.is_file():
                found[int(entry.name)] = os.lseek(int(entry.name), 0, os.SEEK_CUR)
    return found
