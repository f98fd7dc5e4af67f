"""Real processes that form a group on this machine, and wait for functions to run together.

They use gloo unless asked for another backend. A group stays and runs one function after another,
each on all of its ranks. A function that does not end in time has hung: the processes are
killed, and the test fails with what each thread of each rank was doing.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.support.forks import FORKED

STARTING = 240.0  # importing torch on a busy machine is no hang
TIMEOUT = 180.0
GRACE = 5.0  # for the other ranks, after one has raised


Group = Callable[[int], "Ranks"]  # what the fixture ``ranks`` gives


class HangError(AssertionError):
    """Some ranks did not answer in time."""


class Ranks:
    """``count`` processes with a process group; ``run`` calls a function on each and returns all answers."""

    def __init__(self, count: int, backend: str = "gloo") -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        meeting = Path(self._folder.name, "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(count):
            ours, theirs = FORKED.Pipe()
            process = FORKED.Process(
                target=_serve, args=(rank, count, str(meeting), theirs, backend), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers(STARTING)

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def run(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT
    ) -> list[Any]:
        """Return the answers in the order of ranks; raise here if any rank raised."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [answer for _, answer in self._answers(timeout)]

    def _answers(self, timeout: float) -> list[tuple[str, Any]]:
        """Return the answers of all ranks; raise as soon as one of them has raised, or if one is late."""
        answers: dict[Connection, tuple[str, Any]] = {}
        until = time.monotonic() + timeout
        while len(answers) < self.count and time.monotonic() < until:
            waiting: list[Any] = [pipe for pipe in self._pipes if pipe not in answers]
            for pipe in wait(waiting, max(0.0, until - time.monotonic())):
                assert isinstance(pipe, Connection)
                answers[pipe] = pipe.recv()
                if answers[pipe][0] == "error":  # the others may be waiting for it in a collective
                    until = min(until, time.monotonic() + GRACE)
        failed = [answer for kind, answer in answers.values() if kind == "error"]
        if failed:
            self.close()
            raise AssertionError("\n".join(failed))
        if len(answers) < self.count:
            late = [rank for rank, pipe in enumerate(self._pipes) if pipe not in answers]
            stacks = self._stacks()
            self.close()
            raise HangError(
                f"ranks {late} of {self.count} did not answer in {timeout:g} s\n{stacks}"
            )
        return [answers[pipe] for pipe in self._pipes]

    def _stacks(self) -> str:
        """Return what each thread of each rank is doing."""
        for process in self._processes:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGUSR1)
        time.sleep(2)
        files = sorted(Path(self._folder.name).glob("stacks-*"))
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


def _serve(rank: int, count: int, meeting: str, pipe: Connection, backend: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    stacks = Path(meeting).with_name(f"stacks-{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, stacks)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, f"file://{meeting}", rank=rank, world_size=count)
    pipe.send(("ready", None))
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("result", function(*arguments)))
        except BaseException:  # noqa: BLE001 - it is shown by the test
            pipe.send(("error", f"rank {rank}:\n{traceback.format_exc()}"))
