"""Processes of their own, forked from one that has imported torch and started no threads.

Importing torch again takes seconds in each process, a framework even more. And a process that has run other
tests cannot be forked itself: a backward pass in a copy of it fails.
"""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORKED = multiprocessing.get_context("forkserver")
# The first process starts the server, so all that any of them needs is imported there.
FORKED.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "halfguard.guard.guard",
        "halfguard.investigation.one_pass",
    ]
)

# What the server of each group has imported. One for all frameworks would not be like a user's process:
# Lightning looks for others, and behaves differently if it finds them imported.
_ALL = (
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "halfguard",
    "halfguard.cli.app",
    "halfguard.cli.why",
    "halfguard.guard.guard",
    "halfguard.investigation.one_pass",
)
GROUPS = {
    "torch": _ALL,
    "lightning": (*_ALL, "lightning.pytorch", "halfguard.integrations.lightning"),
    "transformers": (
        *_ALL,
        "transformers.trainer",
        "accelerate",
        "peft",
        "trl",
        "halfguard.integrations.transformers",
    ),
}
_FRAMEWORKS = {"lightning": "lightning", "transformers": "transformers|accelerate|peft|trl"}
_SHARED = "HALFGUARD_TEST_FORKS"  # variable with the folder that workers of pytest-xdist share
_STARTING = 240.0  # seconds
_STARTED: list[subprocess.Popen[bytes]] = []


def group_of(text: str) -> str:
    """Return the group of a program, by what it imports."""
    found = {
        name
        for name, modules in _FRAMEWORKS.items()
        if re.search(rf"^\s*(from|import) ({modules})\b", text, re.MULTILINE)
    }
    return min(found, default="torch")


def forked_path(group: str = "torch") -> Path:
    """Return a folder with ``python``, ``halfguard`` and ``torchrun`` that run in forks of a server.

    They take the place of the real ones, also in a shell. A program has its own variables, folder, streams
    and exit code. The processes that it starts by ``sys.executable`` are real ones; ranks are forks.
    """
    if sys.platform != "linux":
        return Path(sys.executable).parent
    folder = _folder() / group
    with (_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _start(folder, GROUPS[group])
    return folder


def forked_python(group: str = "torch") -> str:
    """Return a ``python`` that runs programs in forks."""
    return str(forked_path(group) / "python")


def forked_seconds() -> float:
    """Return the processor time of programs that this process has let run in forks, and of its servers."""
    name = f"seconds-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    path = Path(os.environ.get(_SHARED, "."), name)
    return sum(map(float, path.read_text().split())) if path.exists() else 0.0


def share_forks() -> Callable[[], None]:
    """Let this process and those that it starts use the same servers; return what ends them."""
    folder = Path(tempfile.mkdtemp(prefix="hg-forks-"))
    os.environ[_SHARED] = str(folder)
    (folder / "owner").write_text(str(os.getpid()))

    def end() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for server in _STARTED:
            server.wait()

    return end


def _folder() -> Path:
    if _SHARED not in os.environ:
        atexit.register(share_forks())
    return Path(os.environ[_SHARED])


def _start(folder: Path, modules: tuple[str, ...]) -> None:
    folder.mkdir()
    client = Path(__file__).with_name("fork_client.py").read_text()
    for name in ("python", "halfguard", "torchrun"):
        (folder / name).write_text(f"#!{sys.executable} -IS\n{client}")
        (folder / name).chmod(0o755)
    server = Path(__file__).with_name("fork_server.py")
    owner = (folder.parent / "owner").read_text()
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(server), str(folder), owner, *modules],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path, "HOME": str(folder), "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    _STARTED.append(process)
    until = time.monotonic() + _STARTING
    while not (folder / "socket").exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < until, "a server did not start in time"
        time.sleep(0.05)
